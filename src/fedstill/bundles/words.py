"""A bundle in plain words: what is in it, and what it reveals to its holder."""

from __future__ import annotations

from fedstill.bundles.bundle import Bundle, Trunk
from fedstill.bundles.use import normalisation
from fedstill.core.message import State

__all__ = ["in_words"]


def in_words(bundle: Bundle) -> str:
    """What is in ``bundle`` and what it reveals, for the person who decides whether it may leave the site."""
    about = bundle.about
    message = bundle.tensors()
    lines = [f"{bundle.path.name}: the bundle of '{about.name}' (digest {bundle.digest[:16]})", "It holds"]
    if about.model is not None:
        size = sum(tensor.numel() for tensor in message.group("model").values())
        norm = "" if about.model.norm == "batch" else f", norm {about.model.norm}"
        options = "".join(f", {key} = {value}" for key, value in about.model.options.items())
        lines.append(f"  the weights of {about.model.name}{norm}{options}{_above(about.trunk)}: {size:,} numbers")
    else:
        size = message.group("program")["bytes"].numel()
        lines.append(
            f"  a program ({about.program}) of {size:,} bytes, which runs when someone opens the bundle with --trust-code"
        )
    shown = ", ".join(about.classes[:12]) + (f" and {len(about.classes) - 12} more" if len(about.classes) > 12 else "")
    lines.append(f"  {len(about.classes)} class names: {shown}")
    lines.append(f"  its inputs: images of shape {tuple(about.shape)}, as {normalisation(about.mean, about.std)}")
    if about.samples is not None:
        lines.append(f"  the number of samples: {about.samples:,}")
    if about.label_counts is not None:
        pairs = [f"{name} {count}" for name, count in zip(about.classes, about.label_counts, strict=True)]
        lines.append(f"  the number of each class: {', '.join(pairs[:12])}{' ...' if len(pairs) > 12 else ''}")
    if about.subspace is not None:
        side = next(iter(message.group("projection").values())).shape[0]
        lines.append(
            f"  the subspace of the site's features, a {side} x {side} matrix, under the reference '{about.subspace.reference}'"
        )
    if about.discriminator is not None:
        size = sum(tensor.numel() for tensor in message.group("discriminator").values())
        lines.append(f"  a discriminator of {size:,} numbers that tells the site's images from {about.discriminator}")
    if about.statistics is not None:
        lines.append(f"  {_statistics(message.group('statistics'))}")
    if about.based_on is not None:
        lines.append(f"  the digest of the fused model that it was trained from: {about.based_on[:16]}")
    lines.append(
        "It holds no images, no labels of single images, no file names, and no code" if about.code is None else _code(about.code)
    )
    lines.append("Whoever holds it")
    lines.append("  can use the model, and try by attacks on it to learn whether an image was in its training data")
    if about.label_counts is not None:
        lines.append("  knows how many samples of each class the site has (--no-counts leaves this out)")
    elif about.samples is not None:
        lines.append("  knows how many samples the site has (--no-counts leaves this out)")
    if about.subspace is not None:
        lines.append("  knows in which directions the site's images vary under the reference (--describe none leaves this out)")
    if about.discriminator is not None:
        lines.append("  can ask of any image whether it looks like the site's (--describe none leaves this out)")
    if about.statistics is not None:
        least = int(message.group("statistics")["counts"].min())
        lines += [
            "  knows the number of images of each described class, and the mean and variation of their features under the frozen",
            "  trunk; can draw virtual features like theirs, and try to find out whether a given image was among them. This is",
            f"  easier if few images are behind a mean (here at least {least}; without --statistics this is left out)",
            f"  {_clipping(message.group('statistics'))}",
        ]
    return "\n".join(lines)


def _above(trunk: Trunk | None) -> str:
    """Which part of the network was trained, if the rest is frozen."""
    if trunk is None:
        return ""
    what = "head" if trunk.train == "head" else f"last {trunk.train.removeprefix('last:')} pieces and head"
    return f" ({what} only, on its packaged weights '{trunk.weights}')" if trunk.weights else f", of which {what} were trained"


def _statistics(part: State) -> str:
    """The size and the kind of the statistics."""
    groups, rank, width = part["factors"].shape
    kept = f"the variances along {rank} directions and the remaining ones" if rank else "its variances"
    total, size = int(part["counts"].sum()), sum(part[name].numel() for name in ("means", "variances", "factors"))
    apart = f"{groups} classes or groups of rare ones" if bool((part["labels"] >= 0).any()) else "all images together"
    told = f"for {apart} a count, a mean and {kept}"
    norm = f", no feature counting with a norm above {float(part['clip']):g}" if "clip" in part else ", of features as they are"
    return f"statistics of {total:,} images' features of {width:,} numbers, {told}{norm}: {size:,} numbers"


def _clipping(part: State) -> str:
    """Whether one image can change the statistics without bound."""
    if "clip" in part:
        return "one image changes a sum of features by a bounded amount; no noise hides it"
    return "one unusual image can change them by any amount (--clip bounds it); no noise hides it"


def _code(code: str) -> str:
    return f"It holds no images, no labels of single images and no file names, but it is {code}"
