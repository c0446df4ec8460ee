//! One matrix product on the tensor cores.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::DeviceBuffer;
use partywall_driver::kernels::{Part, Product, small};

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// Rows and columns of all three matrices: 17 GFLOP, 256 blocks.
const SIZE: u32 = 2048;
const TILE: u32 = 128;
/// Elements of the result that the host computes itself.
const SAMPLES: u32 = 512;

/// The workload.
pub(super) struct Matmul {
    place: Place,
    builtin: &'static Builtin,
    product: Product,
    a: DeviceBuffer,
    b: DeviceBuffer,
    c: DeviceBuffer,
}

impl Matmul {
    /// `matmul`.
    ///
    /// # Errors
    /// What the driver returned.
    pub(super) fn new(place: Place, builtin: &'static Builtin) -> Result<Self, WorkloadError> {
        let product = Product::new(SIZE, SIZE, SIZE, TILE)?;
        let (a, b, c) = product.bytes();
        let halves = |bytes: Bytes, first: u32| -> Result<DeviceBuffer, WorkloadError> {
            let buffer = place.context.alloc(bytes)?;
            place.kernels.fill_halves(&place.stream, Part::all(&buffer), first)?;
            Ok(buffer)
        };
        let (a, b) = (halves(a, 0)?, halves(b, SIZE * SIZE)?);
        let c = place.context.alloc(c)?;
        Ok(Self { place, builtin, product, a, b, c })
    }
}

/// What must stand at a place of the result. Exact in fp32: at most 4 * 2048.
fn element(row: u32, column: u32) -> f32 {
    let product = |k: u32| small(row * SIZE + k) * small(SIZE * SIZE + k * SIZE + column);
    (0..SIZE).map(product).sum::<i32>() as f32
}

impl Workload for Matmul {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let request =
            format!("{SIZE} x {SIZE} x {SIZE}, fp16 with fp32 sums, {} blocks", self.product.blocks());
        [("request".to_owned(), request)].into()
    }

    /// Makes every element no number, so that one that is not written is found.
    fn begin(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.fill(&self.c, 0, self.c.len(), 0xff)?)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let Place { stream, kernels, .. } = &self.place;
        let (a, b, c) = (Part::all(&self.a), Part::all(&self.b), Part::all(&self.c));
        Ok(kernels.matmul(stream, self.product, a, b, c)?)
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let count = SIZE * SIZE;
        let found = self.place.words(&self.c, 0, count as usize)?;
        // A stride that has no factor in common with the size meets all rows and columns alike.
        let samples = (0..SAMPLES).map(|sample| sample * (count / SAMPLES - 1) % count);
        let wrong = samples
            .map(|at| (at, f32::from_bits(found[at as usize]), element(at / SIZE, at % SIZE)))
            .find(|(_, found, expected)| found != expected);
        let unwritten = found.iter().filter(|bits| f32::from_bits(**bits).is_nan()).count();
        let wrong = match wrong {
            _ if unwritten > 0 => Some(format!("{unwritten} elements of the product are no numbers")),
            Some((at, found, expected)) => {
                Some(format!("element {at} of the product is {found} and should be {expected}"))
            }
            None => None,
        };
        Ok(Verdict { wrong, checksum: self.place.checksum(Part::all(&self.c))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_what_the_definition_says() {
        let by_hand: i64 = (0..SIZE)
            .map(|k| i64::from(small(3 * SIZE + k)) * i64::from(small(SIZE * SIZE + k * SIZE + 5)))
            .sum();
        assert_eq!(element(3, 5), by_hand as f32);
        assert_ne!(element(3, 5), element(5, 3));
    }
}
