"""Products of a plan that a vendor's library computes where it is found, and what was found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pumice.artifact import BufferRef, LibraryProduct, Manifest
from pumice.errors import DeviceError, UnsupportedError
from pumice.runtime.devices.blas import library
from pumice.runtime.devices.blas.product import Operands, Product, Products, Shape
from pumice.runtime.devices.driver.device import DriverDevice
from pumice.runtime.devices.driver.stream import Stream


class LibraryProducts:
    """The library of a loaded artifact, looked for once, and only where a plan asks for it.

    homes: folders to look into first (`Settings.library_homes`). said: which way such products go,
    and why, for a person; "" where the artifact has none.
    """

    def __init__(
        self, device: DriverDevice, manifest: Manifest, homes: Sequence[Path] = ()
    ) -> None:
        self._products: Products | None = None
        self.said = ""
        if not count(manifest):
            return
        table = library.TABLES[device.api]
        if device.driver.emulated:
            self.said = f"products: Pumice's own kernels; an emulated card has no {table.name}"
            return
        try:
            blas = library.find(table, homes)
        except DeviceError as error:
            self.said = f"products: Pumice's own kernels; {error.message}. {error.hint}"
            return
        self._products = Products(device, blas)
        self.said = f"products of many tokens: {blas}"

    @property
    def name(self) -> str:
        """The library's, in profiles."""
        assert self._products is not None
        return self._products.blas.table.name

    def bind(
        self, product: LibraryProduct, address: Callable[[BufferRef], int], stream: Stream
    ) -> Product | None:
        """The library's way to a product, or None where the own launches are to run: there is no
        library, or it has no algorithm (then `said` tells). address: of a buffer on the device.
        """
        if self._products is None:
            return None
        shape = Shape(
            product.m, product.n, product.k, product.dtype, product.out_dtype,
            product.x_stride, product.w_stride, product.out_stride,
        )  # fmt: skip
        operands = Operands(
            address(product.x), address(product.w), address(product.out),
            address(product.workspace), product.workspace_bytes,
        )  # fmt: skip
        try:
            return self._products.bind(shape, operands, stream)
        except UnsupportedError as error:
            text = f"; Pumice's own kernel, as {error.message}"
            if text not in self.said:
                self.said += text
            return None


def count(manifest: Manifest) -> int:
    """Launches of all plans that may be left to a library."""
    return sum(
        launch.product is not None for plan in manifest.entries.values() for launch in plan.launches
    )
