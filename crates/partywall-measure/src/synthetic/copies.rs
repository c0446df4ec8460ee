//! Copies between pinned memory and the GPU, in either direction and of any size.

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::Bytes;
use partywall_driver::kernels::{Part, pattern};
use partywall_driver::{DeviceBuffer, PinnedBuffer};

use super::place::Place;
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

/// An input of a small network.
const VICTIM_SIZE: Bytes = Bytes::from_kib(64);
/// A model that is loaded: 10 ms at 55 GB/s.
const ANTAGONIST_SIZE: Bytes = Bytes::from_mib(512);
/// The host looks at the first words of each page: the whole of 512 MiB would take it half a second.
const PAGE: u64 = 4096;
const WORDS_OF_PAGE: usize = 16;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToDevice,
    ToHost,
}

/// The workload.
pub(super) struct Copies {
    place: Place,
    builtin: &'static Builtin,
    direction: Direction,
    host: PinnedBuffer,
    device: DeviceBuffer,
}

impl Copies {
    /// `copy-h2d`, `copies-h2d` or `copies-d2h`.
    ///
    /// # Errors
    /// What the driver returned, or that the size is none.
    pub(super) fn new(
        place: Place,
        builtin: &'static Builtin,
        asked: Option<Bytes>,
    ) -> Result<Self, WorkloadError> {
        let normal = if builtin.class == Class::LatencySensitive { VICTIM_SIZE } else { ANTAGONIST_SIZE };
        let size = Bytes(asked.unwrap_or(normal).0 / PAGE * PAGE);
        if size == Bytes::ZERO {
            return Err(WorkloadError::Unfit("copies are of whole pages: ask for 4KiB or more".to_owned()));
        }
        let direction = if builtin.name == "copies-d2h" { Direction::ToHost } else { Direction::ToDevice };
        let host = place.context.pinned(size)?;
        let device = place.patterned(size)?;
        if direction == Direction::ToDevice {
            place.stream.copy_to_host(&host, 0, &device, 0, size.0)?;
            place.stream.synchronize()?;
        }
        let copies = Self { place, builtin, direction, host, device };
        match copies.wrong_pages()? {
            wrong if wrong > 0 && direction == Direction::ToDevice => Err(WorkloadError::Unfit(format!(
                "{wrong} pages of pinned memory are wrong before the first copy"
            ))),
            _ => Ok(copies),
        }
    }

    /// Pages of pinned memory of which the first words are not the pattern.
    fn wrong_pages(&self) -> Result<u64, WorkloadError> {
        let mut wrong = 0;
        let mut words = [0; WORDS_OF_PAGE * 4];
        for page in 0..self.host.len() / PAGE {
            self.host.read(page * PAGE, &mut words)?;
            wrong += u64::from(!is_pattern(&words, (page * PAGE / 4) as u32));
        }
        Ok(wrong)
    }
}

/// Whether these bytes are the words of the pattern from an index on.
fn is_pattern(bytes: &[u8], first: u32) -> bool {
    let mut words = bytes.chunks_exact(4).zip(first..);
    words.all(|(word, index)| word == pattern(index).to_le_bytes())
}

impl Workload for Copies {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        [("request".to_owned(), format!("{} from or to pinned memory", Bytes(self.host.len())))].into()
    }

    fn work(&self) -> f64 {
        match self.builtin.class {
            Class::LatencySensitive => 1.0,
            Class::BestEffort => self.host.len() as f64 / 1e9,
        }
    }

    /// Clears the destination, or its looked-at words.
    fn begin(&mut self) -> Result<(), WorkloadError> {
        match self.direction {
            Direction::ToDevice => self.place.stream.fill(&self.device, 0, self.device.len(), 0xff)?,
            Direction::ToHost => {
                for page in 0..self.host.len() / PAGE {
                    self.host.write(page * PAGE, &[0xff; WORDS_OF_PAGE * 4])?;
                }
            }
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let (stream, length) = (&self.place.stream, self.host.len());
        match self.direction {
            Direction::ToDevice => stream.copy_to_device(&self.device, 0, &self.host, 0, length)?,
            Direction::ToHost => stream.copy_to_host(&self.host, 0, &self.device, 0, length)?,
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let wrong = match self.direction {
            Direction::ToDevice => self.place.wrong_words(Part::all(&self.device), 0)?,
            Direction::ToHost => self.wrong_pages()?,
        };
        let what = if self.direction == Direction::ToDevice { "words" } else { "pages" };
        let wrong = (wrong > 0).then(|| format!("{wrong} {what} were not copied"));
        Ok(Verdict { wrong, checksum: self.place.checksum(Part::all(&self.device))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_is_told_from_everything_else() {
        let bytes: Vec<u8> = (7..23).flat_map(|index| pattern(index).to_le_bytes()).collect();
        assert!(is_pattern(&bytes, 7));
        assert!(!is_pattern(&bytes, 8));
        assert!(!is_pattern(&[0xff; 64], 7));
    }
}
