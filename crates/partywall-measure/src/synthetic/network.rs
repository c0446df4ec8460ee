//! A network of mixed layers, launched as a CUDA graph: products on the tensor cores, reductions over rows, elementwise
//! steps. All numbers are whole and small, so every result is exact, and the host can follow single rows.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::kernels::{Part, Product, small};
use partywall_driver::{DeviceBuffer, GraphExec};

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// Rows: what a batch of one is after the first layers of a network.
const ROWS: u32 = 256;
const WIDTH: u32 = 1024;
const INNER: u32 = 4096;
/// 16 MiB of weights each: together more than any L2 has.
const BLOCKS: u32 = 6;
const TILE: u32 = 64;
const KERNELS: u32 = BLOCKS * 6;
/// Rows that the host follows.
const FOLLOWED: [u32; 2] = [5, 250];

/// The workload.
pub(super) struct Network {
    place: Place,
    builtin: &'static Builtin,
    graph: GraphExec,
    output: DeviceBuffer,
    /// The followed rows of the output, as fp16 bits in words.
    expected: Vec<Vec<u32>>,
}

/// What the layers work on.
struct Buffers {
    input: DeviceBuffer,
    weights: Vec<(DeviceBuffer, DeviceBuffer)>,
    floats: DeviceBuffer,
    sums: DeviceBuffer,
    inner: DeviceBuffer,
    output: DeviceBuffer,
}

/// Where in the pattern the weights of a layer begin; the input begins at 0.
const fn first(block: u32, second: bool) -> u32 {
    ROWS * WIDTH + (2 * block + second as u32) * WIDTH * INNER
}

impl Network {
    /// `network`.
    ///
    /// # Errors
    /// What the driver returned.
    pub(super) fn new(place: Place, builtin: &'static Builtin) -> Result<Self, WorkloadError> {
        let halves = |count: u32, first: u32| -> Result<DeviceBuffer, WorkloadError> {
            let buffer = place.context.alloc(Bytes(u64::from(count) * 2))?;
            place.kernels.fill_halves(&place.stream, Part::all(&buffer), first)?;
            Ok(buffer)
        };
        let layer = |block| -> Result<_, WorkloadError> {
            Ok((halves(WIDTH * INNER, first(block, false))?, halves(WIDTH * INNER, first(block, true))?))
        };
        let buffers = Buffers {
            input: halves(ROWS * WIDTH, 0)?,
            weights: (0..BLOCKS).map(layer).collect::<Result<_, _>>()?,
            floats: place.context.alloc(Bytes(u64::from(ROWS * INNER) * 4))?,
            sums: place.context.alloc(Bytes(u64::from(ROWS) * 4))?,
            inner: place.context.alloc(Bytes(u64::from(ROWS * INNER) * 2))?,
            output: place.context.alloc(Bytes(u64::from(ROWS * WIDTH) * 2))?,
        };
        let graph = record(&place, &buffers)?;
        let expected = FOLLOWED.map(|row| packed(&follow(row))).to_vec();
        Ok(Self { place, builtin, graph, output: buffers.output, expected })
    }
}

/// Records all layers; the graph keeps their buffers.
fn record(place: &Place, buffers: &Buffers) -> Result<GraphExec, WorkloadError> {
    let up = Product::new(ROWS, INNER, WIDTH, TILE)?;
    let down = Product::new(ROWS, WIDTH, INNER, TILE)?;
    place.stream.synchronize()?;
    let kernels = &place.kernels;
    let [input, floats, sums] = [&buffers.input, &buffers.floats, &buffers.sums].map(Part::all);
    let [inner, output] = [&buffers.inner, &buffers.output].map(Part::all);
    let graph = place.stream.capture(|stream| {
        for (block, (first, second)) in buffers.weights.iter().enumerate() {
            let from = if block == 0 { input } else { output };
            kernels.matmul(stream, up, from, Part::all(first), floats)?;
            kernels.row_sums(stream, floats, ROWS, INNER, sums)?;
            kernels.fold(stream, floats, sums, ROWS, INNER, inner)?;
            kernels.matmul(stream, down, inner, Part::all(second), floats)?;
            kernels.row_sums(stream, floats, ROWS, WIDTH, sums)?;
            kernels.fold(stream, floats, sums, ROWS, WIDTH, output)?;
        }
        Ok(())
    })?;
    let graph = graph.instantiate()?;
    graph.upload(&place.stream)?;
    Ok(graph)
}

/// A row of the output: rows do not depend on each other.
fn follow(row: u32) -> Vec<i32> {
    let mut numbers: Vec<i32> = (0..WIDTH).map(|column| small(row * WIDTH + column)).collect();
    for block in 0..BLOCKS {
        numbers = layer(&numbers, first(block, false), INNER);
        numbers = layer(&numbers, first(block, true), WIDTH);
    }
    numbers
}

/// A product with the weights that begin at `first`, and what is done to it.
fn layer(row: &[i32], first: u32, columns: u32) -> Vec<i32> {
    let mut sums = vec![0_i32; columns as usize];
    for (k, number) in row.iter().enumerate() {
        let weights = first + k as u32 * columns;
        for (column, sum) in sums.iter_mut().enumerate() {
            *sum += number * small(weights + column as u32);
        }
    }
    let all = sums.iter().fold(0_i32, |all, sum| all.wrapping_add(*sum));
    sums.iter().map(|sum| sum.wrapping_add(all).rem_euclid(5) - 2).collect()
}

/// Whole numbers from -2 to 2 as fp16, two to a word.
fn packed(numbers: &[i32]) -> Vec<u32> {
    let bits = |number: i32| -> u32 {
        match number {
            -2 => 0xc000,
            -1 => 0xbc00,
            1 => 0x3c00,
            2 => 0x4000,
            _ => 0,
        }
    };
    numbers.chunks_exact(2).map(|pair| bits(pair[0]) | bits(pair[1]) << 16).collect()
}

impl Workload for Network {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let request = format!(
            "{BLOCKS} x ({ROWS} x {WIDTH} to {INNER} and back), {KERNELS} kernels, {} MiB of weights",
            BLOCKS * WIDTH * INNER / (1 << 18)
        );
        [("request".to_owned(), request)].into()
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.fill(&self.output, 0, self.output.len(), 0xff)?)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        Ok(self.graph.launch(&self.place.stream)?)
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let mut wrong = None;
        for (row, expected) in FOLLOWED.into_iter().zip(&self.expected) {
            let offset = u64::from(row * WIDTH) * 2;
            let found = self.place.words(&self.output, offset, expected.len())?;
            let pairs = found.iter().zip(expected).filter(|(found, expected)| found != expected).count();
            if pairs > 0 {
                wrong =
                    Some(format!("row {row} of the output has {pairs} of {} words wrong", expected.len()));
            }
        }
        Ok(Verdict { wrong, checksum: self.place.checksum(Part::all(&self.output))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_product_reduction_and_folding() {
        let row = [1, -2];
        let by_hand: Vec<i32> = (0..3).map(|c| small(9 + c) - 2 * small(9 + 3 + c)).collect();
        let all: i32 = by_hand.iter().sum();
        let folded: Vec<i32> = by_hand.iter().map(|sum| ((sum + all) % 5 + 5) % 5 - 2).collect();
        assert_eq!(layer(&row, 9, 3), folded);
        assert!(u64::from(first(BLOCKS, false)) < u64::from(u32::MAX), "indices of the pattern are u32");
    }

    #[test]
    fn halves_are_packed_low_one_first() {
        assert_eq!(packed(&[-2, -1, 0, 1, 2, 0]), [0xbc00_c000, 0x3c00_0000, 0x0000_4000]);
    }
}
