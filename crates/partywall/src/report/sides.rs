//! What `partywall vram map` and `vram interfere` recorded, as pictures.

use serde::Deserialize;

use super::svg::Picture;

mod interference;
mod knee;
mod latencies;
mod map;
#[cfg(test)]
mod tests;

/// What pictures show of a map.
#[derive(Debug, Deserialize)]
pub(crate) struct Map {
    gpu: String,
    simulated: bool,
    sides: Option<Sides>,
}

#[derive(Debug, Deserialize)]
struct Sides {
    granularity_bytes: u32,
    groups: String,
    sms_per_group: u32,
    pages: String,
    checked: u64,
    /// Earlier records do not have them.
    latencies: Option<Latencies>,
}

/// How many probes took how long, by bins that follow each other.
#[derive(Debug, Deserialize)]
struct Latencies {
    bin_cycles: u32,
    from_cycles: u32,
    near: Vec<u32>,
    far: Vec<u32>,
    longer: u64,
}

/// What pictures show of neighbours.
#[derive(Debug, Deserialize)]
pub(crate) struct Neighbours {
    gpu: String,
    simulated: bool,
    rows: Vec<Row>,
}

#[derive(Debug, Deserialize)]
struct Row {
    view: View,
    work: Work,
    threads_per_sm: u32,
    load: String,
    #[serde(default)]
    load_sms: u32,
    #[serde(default)]
    load_threads_per_sm: u32,
    #[serde(default)]
    code_place: u32,
    alone: Alone,
    interference_p50: f64,
    interference_p99: Option<f64>,
    #[serde(default)]
    added_us_per_launch: Option<f64>,
    #[serde(default)]
    load_alone_gb_s: f64,
}

#[derive(Debug, Deserialize)]
struct Alone {
    count: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum View {
    Colored,
    Uncolored,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Work {
    Long,
    Short,
    Graph,
}

impl Map {
    /// As SVG files: (name, text). `slices` is of `results/h200/slices-16-pages.bin`: for each KiB the slices of its first 256 B and of the
    /// next.
    pub(crate) fn pictures(&self, slices: &[u8]) -> Vec<(String, String)> {
        let Some(sides) = &self.sides else { return Vec::new() };
        let how = how(self.simulated);
        let map = map::figure(sides, slices).map(|picture| file(&picture, &format!("{how}, {}.", self.gpu)));
        let latencies = sides.latencies.as_ref().and_then(latencies::figure).map(|picture| {
            file(&picture, &format!("{how}, {}; the check of {} fresh addresses.", self.gpu, sides.checked))
        });
        [map, latencies].into_iter().flatten().collect()
    }
}

impl Neighbours {
    /// A picture of this name as an SVG file (name, text): `knee`, where neighbours had several numbers of SMs and threads; `long`, bars of one long
    /// launch; any other, bars of all that there is. Nothing where there are no rows of it.
    pub(crate) fn picture(&self, name: &str) -> Option<(String, String)> {
        let count = self.rows.iter().map(|row| row.alone.count).min().unwrap_or_default();
        let note =
            |each| format!("{}, {}; {count} passes or requests a {each}.", how(self.simulated), self.gpu);
        match name {
            "knee" => Some(file(&knee::figure(&self.rows)?, &note("dot"))),
            name => Some(file(&interference::figure(name, &self.rows)?, &note("bar"))),
        }
    }
}

fn how(simulated: bool) -> &'static str {
    if simulated { "Simulated GPU, not measured" } else { "Measured" }
}

fn file(picture: &Picture, note: &str) -> (String, String) {
    (format!("{}.svg", picture.id), picture.file(note))
}
