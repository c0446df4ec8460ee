//! Kernel events a second (`cargo bench -p partywall-sim`).

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot be set up has nothing to report")]

use divan::Bencher;
use divan::counter::ItemsCount;
use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_core::units::Nanos;
use partywall_sim::machine;
use partywall_sim::params::Params;
use partywall_sim::speed::{self, Mix};

fn main() {
    divan::main();
}

fn h200() -> &'static Gpu {
    Catalogue::builtin().unwrap().get("h200").unwrap()
}

fn mix(bencher: Bencher<'_, '_>, mix: Mix) {
    let setup = speed::mix_setup(mix, h200(), &Params::default(), Nanos::from_secs(1)).unwrap();
    let kernels = machine::run(setup.clone()).unwrap().kernels;
    bencher
        .counter(ItemsCount::new(kernels))
        .with_inputs(|| setup.clone())
        .bench_local_values(|setup| machine::run(setup).unwrap());
}

#[divan::bench]
fn two_tenants_mps(bencher: Bencher<'_, '_>) {
    mix(bencher, Mix::Two);
}

#[divan::bench]
fn four_tenants_mps(bencher: Bencher<'_, '_>) {
    mix(bencher, Mix::Four);
}

/// One hour of 64 GPUs with networks merged into [`speed::FLEET_SEGMENTS`] pieces; the time reported is real time.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn hour_of_64_gpus() -> speed::Fleet {
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let hour = Nanos::from_secs(3600);
    speed::fleet(64, h200(), &Params::default(), hour, workers, &mut || 0.0).unwrap()
}
