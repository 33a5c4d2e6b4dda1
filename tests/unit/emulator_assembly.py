"""Assembly → machine code or code objects, by the LLVM and lld inside Triton."""

from __future__ import annotations

import tempfile
from pathlib import Path

from assembler import assemble


def code_object(text: str, arch: str) -> bytes:
    """A linked code object (.hsaco) of a whole assembly file."""
    from triton._C import libtriton

    with tempfile.TemporaryDirectory() as folder:
        source, linked = Path(folder, "a.o"), Path(folder, "a.hsaco")
        source.write_bytes(assemble(text, arch))
        libtriton.amd.link_hsaco(str(source), str(linked))
        return linked.read_bytes()


KERNEL = """
.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
.amdhsa_code_object_version 5
.text
.globl test
.p2align 8
.type test,@function
test:
{body}
  s_endpgm
.Lend:
.size test, .Lend-test
.rodata
.p2align 6
.amdhsa_kernel test
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_private_segment_fixed_size {scratch}
  .amdhsa_kernarg_size 64
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_next_free_vgpr 64
  .amdhsa_next_free_sgpr 64
  {extra}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: test
    .symbol: test.kd
    .kernarg_segment_size: 64
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: {scratch}
    .kernarg_segment_align: 8
    .wavefront_size: {wave}
    .sgpr_count: 64
    .vgpr_count: 64
    .max_flat_workgroup_size: 1024
    .args:
      - {{.offset: 0, .size: 8, .value_kind: global_buffer}}
      - {{.offset: 8, .size: 8, .value_kind: global_buffer}}
      - {{.offset: 16, .size: 8, .value_kind: by_value}}
...
.end_amdgpu_metadata
"""


def kernel(body: str, arch: str, *, lds: int = 0, scratch: int = 0) -> bytes:
    """A code object with one kernel `test`, whose arguments are two addresses and a number.

    s[0:1] holds the arguments' address; the workgroup's id follows in s2 (ttmp9 on RDNA4).
    """
    wave = 64 if arch.startswith("gfx9") else 32
    extra = ".amdhsa_accum_offset 64" if arch in ("gfx90a", "gfx942", "gfx950") else ""
    text = KERNEL.format(body=body, arch=arch, lds=lds, scratch=scratch, wave=wave, extra=extra)
    return code_object(text, arch)
