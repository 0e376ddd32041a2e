"""What the centre does: fuse several trained models into one, by distillation on unlabelled inputs. One file per step, in the
order of :func:`fuse`: options, teachers, pool, student, ensemble, figures, result."""

from fedstill.bundles.fuse.call import fuse
from fedstill.bundles.fuse.options import FuseOptions
from fedstill.bundles.fuse.result import Figure, Fused

__all__ = ["Figure", "FuseOptions", "Fused", "fuse"]
