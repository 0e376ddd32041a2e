"""How knowledge is transferred: sources of samples, divergences, the student's training, the transfer of a round."""
