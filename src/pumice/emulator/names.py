"""One name an operation: the mnemonics of CDNA and RDNA4 are turned into RDNA3's.

The ISA documents rename an operation between generations without changing what it does
(`v_addc_co_u32` is `v_add_co_ci_u32`, `ds_read2st64_b32` is `ds_load_2addr_stride64_b32`). Where
the meaning did change the name is kept apart, here or in the instruction's own module.
"""

from __future__ import annotations

import functools
import re

_EXACT = {
    "v_add_u32": "v_add_nc_u32", "v_sub_u32": "v_sub_nc_u32", "v_subrev_u32": "v_subrev_nc_u32",
    "v_add_u16": "v_add_nc_u16", "v_sub_u16": "v_sub_nc_u16", "v_subrev_u16": "v_subrev_nc_u16",
    "v_add_i16": "v_add_nc_i16", "v_sub_i16": "v_sub_nc_i16",
    "v_add_i32": "v_add_nc_i32", "v_sub_i32": "v_sub_nc_i32",
    "v_addc_co_u32": "v_add_co_ci_u32", "v_subb_co_u32": "v_sub_co_ci_u32",
    "v_subbrev_co_u32": "v_subrev_co_ci_u32",
    "v_ffbh_u32": "v_clz_i32_u32", "v_ffbl_b32": "v_ctz_i32_b32", "v_ffbh_i32": "v_cls_i32",
    "v_cvt_pkrtz_f16_f32": "v_cvt_pk_rtz_f16_f32", "v_cvt_flr_i32_f32": "v_cvt_floor_i32_f32",
    "v_cvt_rpi_i32_f32": "v_cvt_nearest_i32_f32", "v_mad_mix_f32": "v_fma_mix_f32",
    "v_mad_mixlo_f16": "v_fma_mixlo_f16", "v_mad_mixhi_f16": "v_fma_mixhi_f16",
    "v_mul_legacy_f32": "v_mul_dx9_zero_f32", "v_cvt_pknorm_i16_f32": "v_cvt_pk_norm_i16_f32",
    "v_cvt_pknorm_u16_f32": "v_cvt_pk_norm_u16_f32", "v_accvgpr_read": "v_accvgpr_read_b32",
    "v_accvgpr_write": "v_accvgpr_write_b32", "v_dot2c_f32_f16": "v_dot2acc_f32_f16",
    "v_dot2c_f32_bf16": "v_dot2acc_f32_bf16", "v_mad_co_u64_u32": "v_mad_u64_u32",
    "v_mad_co_i64_i32": "v_mad_i64_i32", "v_div_fixup_legacy_f16": "v_div_fixup_f16",
    "v_dual_max_num_f32": "v_dual_max_f32", "v_dual_min_num_f32": "v_dual_min_f32",
    "s_add_co_u32": "s_add_u32", "s_add_co_i32": "s_add_i32", "s_add_co_ci_u32": "s_addc_u32",
    "s_sub_co_u32": "s_sub_u32", "s_sub_co_i32": "s_sub_i32", "s_sub_co_ci_u32": "s_subb_u32",
    "s_addk_co_i32": "s_addk_i32",
    "s_ff1_i32_b32": "s_ctz_i32_b32", "s_ff1_i32_b64": "s_ctz_i32_b64",
    "s_flbit_i32_b32": "s_clz_i32_u32", "s_flbit_i32_b64": "s_clz_i32_u64",
    "s_flbit_i32": "s_cls_i32", "s_flbit_i32_i64": "s_cls_i32_i64",
}  # fmt: skip

_MEMORY = (
    (r"_dwordx16", "_b512"), (r"_dwordx8", "_b256"), (r"_dwordx4", "_b128"), (r"_dwordx3", "_b96"),
    (r"_dwordx2", "_b64"), (r"_dword", "_b32"), (r"load_([us])byte_d16_hi", r"load_d16_hi_\g<1>8"),
    (r"load_([us])byte_d16", r"load_d16_\g<1>8"), (r"load_short_d16_hi", "load_d16_hi_b16"),
    (r"load_short_d16", "load_d16_b16"), (r"store_byte_d16_hi", "store_d16_hi_b8"),
    (r"store_short_d16_hi", "store_d16_hi_b16"), (r"_([us])byte", r"_\g<1>8"), (r"_([us])short",
    r"_\g<1>16"), (r"store_byte", "store_b8"), (r"store_short", "store_b16"), (r"_s(8|16)$",
    r"_i\g<1>"),
)  # fmt: skip
_ATOMIC = {
    "add": "add_u32", "sub": "sub_u32", "smin": "min_i32", "umin": "min_u32", "smax": "max_i32",
    "umax": "max_u32", "and": "and_b32", "or": "or_b32", "xor": "xor_b32", "inc": "inc_u32",
    "dec": "dec_u32", "swap": "swap_b32", "cmpswap": "cmpswap_b32",
}  # fmt: skip
_DS = (
    (r"^ds_read2st64_", "ds_load_2addr_stride64_"), (r"^ds_write2st64_",
    "ds_store_2addr_stride64_"), (r"^ds_read2_", "ds_load_2addr_"), (r"^ds_write2_",
    "ds_store_2addr_"), (r"^ds_wrxchg2st64_", "ds_storexchg_2addr_stride64_"), (r"^ds_wrxchg2_",
    "ds_storexchg_2addr_"), (r"^ds_wrxchg_", "ds_storexchg_"), (r"^ds_read_", "ds_load_"),
    (r"^ds_write_", "ds_store_"),
)  # fmt: skip


@functools.cache
def canonical(name: str) -> str:
    """RDNA3's name of an operation of any generation, in lower case, encoding suffix removed."""
    name = name.lower().removesuffix("_e32").removesuffix("_e64")
    if name in _EXACT:
        return _EXACT[name]
    if name.startswith(("v_", "s_", "ds_", "global_", "flat_", "buffer_")):
        name = name.replace("_num_f", "_f")
    if name.startswith(("s_andn", "s_orn")):
        name = re.sub(r"^s_(and|or)n2", r"s_\g<1>_not1", name)
        return re.sub(r"^s_(and|or)n1", r"s_\g<1>_not0", name)
    if name.startswith("ds_"):
        for pattern, with_ in _DS:
            name = re.sub(pattern, with_, name)
        return name
    if name.startswith(("global_", "flat_", "buffer_", "scratch_")) or (
        name.startswith("s_") and "load" in name
    ):
        kind, _, rest = name.partition("_atomic_")
        if rest:
            wide = rest.endswith("_x2")
            new: str | None = _ATOMIC.get(rest.removesuffix("_x2"))
            if new is None:
                return name
            return f"{kind}_atomic_{new.replace('32', '64') if wide else new}"
        for pattern, new in _MEMORY:
            name = re.sub(pattern, new, name)
    return name
