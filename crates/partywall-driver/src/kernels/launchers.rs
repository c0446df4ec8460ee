//! One launcher per kernel, each with what must hold for the kernel to stay inside its buffers.

use partywall_core::units::Bytes;

use super::Argument::{self, U32, U64};
use super::{Kernels, Part, Shape, linear_steps};
use crate::error::DriverError;
use crate::stream::Stream;

/// How accesses ask the caches to treat what they touch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// As the caches see fit.
    Default,
    /// The first to go when L2 needs room (`.cs`).
    EvictFirst,
    /// Not kept by L1, so that every access reaches L2 (`.cg`).
    L2,
}

/// A cycle of links through all nodes of a buffer, for chasing pointers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkCycle {
    nodes: u32,
    stride_words: u32,
}

impl LinkCycle {
    /// Of the form 4k + 1, with good spectral properties modulo powers of two (Steele and Vigna 2022).
    const MULTIPLIER: u32 = 0x93d7_65dd;
    const INCREMENT: u32 = 0x9e37_79b9;

    /// As many nodes as are a power of two and fit into `size`, `stride` apart.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] unless `stride` is a multiple of 4 bytes, up to 1 MiB, of which at least two fit.
    pub fn new(size: Bytes, stride: Bytes) -> Result<Self, DriverError> {
        let stride_fits = stride.0.is_multiple_of(4) && (4..=1 << 20).contains(&stride.0);
        let nodes = if stride_fits { size.0 / stride.0 } else { 0 };
        if nodes < 2 {
            let what = format!("links {stride} apart in {size}: use multiples of 4 bytes of which two fit");
            return Err(DriverError::Invalid(what));
        }
        // At most 2^31: numbers of nodes are u32.
        let nodes = 1 << nodes.ilog2().min(31);
        Ok(Self { nodes, stride_words: (stride.0 / 4) as u32 })
    }

    /// How many nodes it has: a power of two.
    pub const fn nodes(self) -> u32 {
        self.nodes
    }

    /// What the nodes take.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.nodes as u64 * self.stride_words as u64 * 4)
    }

    /// The node that is `steps` links after `node`.
    pub fn after(self, node: u32, steps: u64) -> u32 {
        // A map modulo 2^32 agrees with itself modulo any smaller power of two.
        linear_steps(node, Self::MULTIPLIER, Self::INCREMENT, steps) & (self.nodes - 1)
    }
}

/// A matrix product C = A * B with `m` x `k` halves A, `k` x `n` halves B and `m` x `n` floats C, all row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    m: u32,
    n: u32,
    k: u32,
    tile: u32,
}

impl Product {
    /// Largest dimension: keeps all sizes far from overflow.
    pub const DIMENSION_MAX: u32 = 1 << 15;

    /// A product in tiles of 64 x 64 (more blocks, for small products) or 128 x 128 (faster, for large ones).
    ///
    /// # Errors
    /// [`DriverError::Invalid`] unless `m` and `n` are multiples of the tile, `k` of 32, and all are at most
    /// [`Product::DIMENSION_MAX`].
    pub fn new(m: u32, n: u32, k: u32, tile: u32) -> Result<Self, DriverError> {
        let multiple =
            |value: u32, of: u32| value > 0 && value.is_multiple_of(of) && value <= Self::DIMENSION_MAX;
        if !matches!(tile, 64 | 128) || !multiple(m, tile) || !multiple(n, tile) || !multiple(k, 32) {
            let needed =
                "m and n must be multiples of the tile, which is 64 or 128, and k of 32, up to 32768";
            return Err(DriverError::Invalid(format!(
                "a product of {m} x {k} by {k} x {n} in tiles of {tile}: {needed}"
            )));
        }
        Ok(Self { m, n, k, tile })
    }

    /// Blocks of the launch.
    pub const fn blocks(self) -> u32 {
        (self.m / self.tile) * (self.n / self.tile)
    }

    /// What A, B and C take.
    pub const fn bytes(self) -> (Bytes, Bytes, Bytes) {
        let (m, n, k) = (self.m as u64, self.n as u64, self.k as u64);
        (Bytes(m * k * 2), Bytes(k * n * 2), Bytes(m * n * 4))
    }
}

/// Where a token goes: into a cache of `layers` x `capacity` entries of `words` words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    /// Layers of the model.
    pub layers: u32,
    /// Tokens that the cache has room for.
    pub capacity: u32,
    /// Words of an entry: what a token adds to a layer's cache.
    pub words: u32,
    /// Which token of the sequence, from 0.
    pub position: u32,
    /// Which sequence; its number is added to all words.
    pub sequence: u32,
}

/// Enough for buffers of any size: the loops of the filling kernels go round.
const FILLERS: Shape = Shape { blocks: 1024, threads: 256 };

fn part<'a>(part: &Part<'a>) -> Argument<'a> {
    Argument::Part(*part)
}

fn invalid<T>(what: String) -> Result<T, DriverError> {
    Err(DriverError::Invalid(what))
}

/// Buffers: all errors are those of the driver, besides those that are named.
impl Kernels {
    /// `words[i] = pattern(first + i) + add`, for the whole words of the part.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn fill_pattern(
        &self,
        stream: &Stream,
        words: Part<'_>,
        first: u32,
        add: u32,
    ) -> Result<(), DriverError> {
        let arguments = [part(&words), U64(words.words()), U32(first), U32(add)];
        // SAFETY: the kernel writes as many words as the part has.
        unsafe { self.launch("fill_pattern", stream, FILLERS, 0, &arguments) }
    }

    /// Adds to the u64 in `wrong` how many words are not `pattern(first + i) + add`.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where `wrong` has no room, or what the driver returned.
    pub fn count_wrong(
        &self,
        stream: &Stream,
        words: Part<'_>,
        first: u32,
        add: u32,
        wrong: Part<'_>,
    ) -> Result<(), DriverError> {
        wrong.needs("count of wrong words", 8)?;
        let arguments = [part(&words), U64(words.words()), U32(first), U32(add), part(&wrong)];
        // SAFETY: it reads as many words as the part has, and adds to one u64, for which there is room.
        unsafe { self.launch("count_wrong", stream, FILLERS, 0, &arguments) }
    }

    /// Adds to the two u64 in `sums` the sum of all words, and the sum of each times its index plus one.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where `sums` has no room, or what the driver returned.
    pub fn checksum(&self, stream: &Stream, words: Part<'_>, sums: Part<'_>) -> Result<(), DriverError> {
        sums.needs("checksum", 16)?;
        let arguments = [part(&words), U64(words.words()), part(&sums)];
        // SAFETY: it reads as many words as the part has, and adds to two u64, for which there is room.
        unsafe { self.launch("checksum", stream, FILLERS, 0, &arguments) }
    }

    /// `halves[i] = small(first + i)` as fp16.
    ///
    /// # Errors
    /// What the driver returned.
    pub fn fill_halves(&self, stream: &Stream, halves: Part<'_>, first: u32) -> Result<(), DriverError> {
        let arguments = [part(&halves), U64(halves.bytes / 2), U32(first)];
        // SAFETY: it writes as many halves as the part has.
        unsafe { self.launch("fill_halves", stream, FILLERS, 0, &arguments) }
    }

    /// Writes the links of a cycle.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where the part is too small, or what the driver returned.
    pub fn fill_links(&self, stream: &Stream, links: Part<'_>, cycle: LinkCycle) -> Result<(), DriverError> {
        links.needs("links", cycle.bytes().0)?;
        let map = [U32(LinkCycle::MULTIPLIER), U32(LinkCycle::INCREMENT)];
        let arguments = [part(&links), U32(cycle.nodes), U32(cycle.stride_words), map[0], map[1]];
        // SAFETY: it writes one word for each node, at node * stride, and there is room for all nodes.
        unsafe { self.launch("fill_links", stream, FILLERS, 0, &arguments) }
    }
}

/// Traffic.
impl Kernels {
    /// Each of the u32 in `cursors` is a node of the cycle and goes `steps` links further.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where `links` is too small; [`DriverError::Invalid`] where the shape has fewer threads
    /// than there are cursors; or what the driver returned.
    pub fn chase(
        &self,
        stream: &Stream,
        shape: Shape,
        links: Part<'_>,
        cycle: LinkCycle,
        cursors: Part<'_>,
        steps: u32,
    ) -> Result<(), DriverError> {
        links.needs("links", cycle.bytes().0)?;
        if cursors.words() > shape.all_threads() {
            let (chains, threads) = (cursors.words(), shape.all_threads());
            return invalid(format!("{chains} chains for {threads} threads: at most one a thread"));
        }
        let chains = U32(cursors.words() as u32);
        let (nodes, stride) = (U32(cycle.nodes), U32(cycle.stride_words));
        let arguments = [part(&links), nodes, stride, part(&cursors), chains, U32(steps)];
        // SAFETY: nodes are taken modulo their number, which is a power of two, and there is room for all; each thread
        // reads and writes one cursor, and those beyond the last cursor do nothing.
        unsafe { self.launch("chase", stream, shape, 0, &arguments) }
    }

    /// Reads all quads (16 B) of `data` `passes` times and adds their words to the slots in `sums`, modulo 2^32.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where `sums` has no slot, or what the driver returned.
    pub fn read(
        &self,
        stream: &Stream,
        shape: Shape,
        policy: Policy,
        data: Part<'_>,
        passes: u32,
        sums: Part<'_>,
    ) -> Result<(), DriverError> {
        let name = match policy {
            Policy::Default => "read_default",
            Policy::EvictFirst => "read_evict_first",
            Policy::L2 => "read_l2",
        };
        let arguments = [part(&data), U64(data.quads()), U32(passes), part(&sums), U32(sums.slots()?)];
        // SAFETY: it reads as many quads as the part has, which begins at a multiple of 16; sums go to slots that exist.
        unsafe { self.launch(name, stream, shape, 0, &arguments) }
    }

    /// Adds 1 to every word of the whole quads of `data`, `passes` times.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] for [`Policy::L2`], which this kernel does not have, or what the driver returned.
    pub fn read_write(
        &self,
        stream: &Stream,
        shape: Shape,
        policy: Policy,
        data: Part<'_>,
        passes: u32,
    ) -> Result<(), DriverError> {
        let name = match policy {
            Policy::Default => "read_write_default",
            Policy::EvictFirst => "read_write_evict_first",
            Policy::L2 => return invalid("reading and writing has no policy of its own for L2".into()),
        };
        let arguments = [part(&data), U64(data.quads()), U32(passes)];
        // SAFETY: it reads and writes as many quads as the part has, which begins at a multiple of 16.
        unsafe { self.launch(name, stream, shape, 0, &arguments) }
    }
}

/// Compute.
impl Kernels {
    /// `iterations` fused multiply-adds, one after the other, in each thread; results, of which
    /// [`super::multiplied`] knows what they must be, go to the floats of `out`, as far as they fit.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] unless `iterations` is a multiple of 64, or what the driver returned.
    pub fn multiply_add(
        &self,
        stream: &Stream,
        shape: Shape,
        out: Part<'_>,
        iterations: u32,
    ) -> Result<(), DriverError> {
        if !iterations.is_multiple_of(64) || iterations > i32::MAX as u32 {
            return invalid(format!("{iterations} iterations: use a multiple of 64 below 2^31"));
        }
        let count = u32::try_from(out.words()).unwrap_or(u32::MAX);
        let arguments = [part(&out), U32(count), U32(iterations)];
        // SAFETY: a thread writes only if its number is below the number of floats in the part.
        unsafe { self.launch("multiply_add", stream, shape, 0, &arguments) }
    }

    /// Steps the u32 at the beginning of `value`, in a kernel of one warp; [`super::stepped`] says where many steps lead.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where there is no u32, or what the driver returned.
    pub fn step_once(&self, stream: &Stream, value: Part<'_>) -> Result<(), DriverError> {
        value.needs("number to step", 4)?;
        // SAFETY: one thread reads and writes one u32, for which there is room.
        unsafe { self.launch("step_once", stream, Shape { blocks: 1, threads: 32 }, 0, &[part(&value)]) }
    }

    /// C = A * B on the tensor cores.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where a matrix does not fit its part, or what the driver returned.
    pub fn matmul(
        &self,
        stream: &Stream,
        product: Product,
        a: Part<'_>,
        b: Part<'_>,
        c: Part<'_>,
    ) -> Result<(), DriverError> {
        let bytes = product.bytes();
        a.needs("matrix A", bytes.0.0)?;
        b.needs("matrix B", bytes.1.0)?;
        c.needs("matrix C", bytes.2.0)?;
        if [a, b, c].iter().any(|part| !part.address().is_multiple_of(32)) {
            return invalid("matrices must begin at multiples of 32 bytes".into());
        }
        let name = if product.tile == 64 { "matmul_64" } else { "matmul_128" };
        let shape = Shape { blocks: product.blocks(), threads: 2 * product.tile };
        let arguments = [part(&a), part(&b), part(&c), U32(product.n), U32(product.k)];
        // SAFETY: the blocks are exactly the tiles of C, dimensions are multiples of what a block works on at a time, and
        // the matrices fit; their addresses are aligned for quads and for the 32 B that `wmma` needs.
        unsafe { self.launch(name, stream, shape, 0, &arguments) }
    }

    /// The sums of the rows of `c` (`rows` x `columns` floats that are whole numbers) as i32, modulo 2^32.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for no rows, or what the driver returned.
    pub fn row_sums(
        &self,
        stream: &Stream,
        c: Part<'_>,
        rows: u32,
        columns: u32,
        sums: Part<'_>,
    ) -> Result<(), DriverError> {
        c.needs("matrix", u64::from(rows) * u64::from(columns) * 4)?;
        sums.needs("sums of rows", u64::from(rows) * 4)?;
        let shape = Shape::new(rows, 256)?;
        // SAFETY: one block for each row reads its columns and writes one sum; all fit.
        unsafe { self.launch("row_sums", stream, shape, 0, &[part(&c), U32(columns), part(&sums)]) }
    }

    /// `out[r][i] = (c[r][i] + sums[r]) mod 5 - 2` as fp16, for `rows` x `columns` numbers.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for no numbers, or what the driver returned.
    pub fn fold(
        &self,
        stream: &Stream,
        c: Part<'_>,
        sums: Part<'_>,
        rows: u32,
        columns: u32,
        out: Part<'_>,
    ) -> Result<(), DriverError> {
        let count = u64::from(rows) * u64::from(columns);
        c.needs("matrix", count * 4)?;
        sums.needs("sums of rows", u64::from(rows) * 4)?;
        out.needs("folded matrix", count * 2)?;
        let blocks = u32::try_from(count.div_ceil(256)).unwrap_or(u32::MAX).min(4096);
        let shape = Shape::new(blocks, 256)?;
        let arguments = [part(&c), part(&sums), U32(columns), U64(count), part(&out)];
        // SAFETY: it reads and writes `count` numbers; the row of each is below `rows`; all fit. Columns are not 0,
        // because then the count and with it the blocks would be.
        unsafe { self.launch("fold", stream, shape, 0, &arguments) }
    }
}

/// What a language model does.
impl Kernels {
    /// Appends a token to the cache and writes the layers' input: all u32 of `input`.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for a token beyond the capacity, or what the driver
    /// returned.
    pub fn begin_token(
        &self,
        stream: &Stream,
        cache: Part<'_>,
        token: Token,
        input: Part<'_>,
    ) -> Result<(), DriverError> {
        let Token { layers, capacity, words, position, sequence } = token;
        let new = u64::from(layers) * u64::from(words);
        let total = u128::from(new) * u128::from(capacity) * 4;
        cache.needs("cache", u64::try_from(total).unwrap_or(u64::MAX))?;
        if position >= capacity || new >= 1 << 31 || input.words() >= 1 << 31 {
            return invalid(format!(
                "{token:?}: the position must be below the capacity, layers x words below 2^31"
            ));
        }
        let place = [U32(layers), U32(capacity), U32(words), U32(position), U32(sequence)];
        let [l, c, w, p, s] = place;
        let arguments = [part(&cache), l, c, w, p, s, part(&input), U32(input.words() as u32)];
        let blocks = new.max(input.words()).div_ceil(256).clamp(1, 1024) as u32;
        // SAFETY: it writes the entry at `position` of each layer, all of which are in the cache, and the words of the
        // input. No words means that nothing is written: the loop that divides by their number does not run.
        unsafe { self.launch("begin_token", stream, Shape { blocks, threads: 256 }, 0, &arguments) }
    }

    /// Multiplies the rows of `weights` (each as long as `input`, signed bytes) with `input`; one i32 for each row.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for an input that is not whole quads, or what the driver
    /// returned.
    pub fn project(
        &self,
        stream: &Stream,
        shape: Shape,
        weights: Part<'_>,
        input: Part<'_>,
        rows: u32,
        output: Part<'_>,
    ) -> Result<(), DriverError> {
        if !input.bytes.is_multiple_of(16) || input.quads() > u64::from(u32::MAX >> 1) {
            return invalid(format!("an input of {} bytes: use a multiple of 16", input.bytes));
        }
        let needed = u128::from(rows) * u128::from(input.bytes);
        weights.needs("weights", u64::try_from(needed).unwrap_or(u64::MAX))?;
        output.needs("output", u64::from(rows) * 4)?;
        if rows > i32::MAX as u32 {
            return invalid(format!("{rows} rows: at most 2^31 - 1"));
        }
        let quads = U32(input.quads() as u32);
        let arguments = [part(&weights), part(&input), U32(rows), quads, part(&output)];
        // SAFETY: it reads `rows` rows of as many quads as the input has, and writes as many i32; all fit.
        unsafe { self.launch("project", stream, shape, 0, &arguments) }
    }

    /// Adds to the slots the products of all words of `cache`, entries of `words` words, with a query whose word `w` is
    /// `pattern(w)`, modulo 2^32.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where there is no slot, [`DriverError::Invalid`] where an entry is not whole quads, or
    /// what the driver returned.
    pub fn attend(
        &self,
        stream: &Stream,
        shape: Shape,
        cache: Part<'_>,
        words: u32,
        sums: Part<'_>,
    ) -> Result<(), DriverError> {
        if words == 0 || !words.is_multiple_of(4) {
            return invalid(format!("entries of {words} words: use a multiple of 4"));
        }
        let arguments = [part(&cache), U64(cache.quads()), U32(words / 4), part(&sums), U32(sums.slots()?)];
        // SAFETY: it reads as many quads as the part has; sums go to slots that exist; the divisor is not 0.
        unsafe { self.launch("attend", stream, shape, 0, &arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_one_cycle_through_all_nodes() {
        let cycle = LinkCycle::new(Bytes::from_kib(600), Bytes(128)).unwrap();
        assert_eq!((cycle.nodes(), cycle.bytes()), (4096, Bytes::from_kib(512)));
        let mut seen = vec![false; 4096];
        let mut node = 17;
        for step in 0..4096 {
            assert!(!std::mem::replace(&mut seen[node as usize], true), "{node} again after {step} steps");
            assert_eq!(node, cycle.after(17, step));
            node = cycle.after(node, 1);
        }
        assert_eq!(node, 17);
        for (size, stride) in [(600, 3), (600, 0), (600, 1024), (1 << 40, 2 << 20)] {
            assert!(LinkCycle::new(Bytes(size), Bytes(stride)).is_err(), "{size} {stride}");
        }
        assert_eq!(LinkCycle::new(Bytes(1 << 50), Bytes(4)).unwrap().nodes(), 1 << 31);
    }

    #[test]
    fn products_are_whole_tiles() {
        let product = Product::new(256, 512, 96, 128).unwrap();
        assert_eq!((product.blocks(), product.bytes()), (8, (Bytes(49_152), Bytes(98_304), Bytes(524_288))));
        let refused = [
            (64, 128, 32, 128),
            (128, 128, 16, 128),
            (0, 64, 32, 64),
            (64, 64, 32, 32),
            (1 << 16, 64, 32, 64),
        ];
        for (m, n, k, tile) in refused {
            assert!(Product::new(m, n, k, tile).is_err(), "{m} {n} {k} {tile}");
        }
    }
}
