//! A tenant that uses no GPU: it takes as long for a request as it is told, and fails as it is told. Rehearsals and CI
//! use it in place of real ones; it says so in `about`, and the record marks what it measured.

use std::collections::BTreeMap;
use std::rc::Rc;

use partywall_core::units::Nanos;
use rand_pcg::Pcg64Dxsm;
use rand_pcg::rand_core::Rng;

use super::{Clock, Identity, Verdict, Workload, WorkloadError};

/// What `partywall tenant` calls it.
pub const PRETEND: &str = "pretend";

/// The key in `about` that marks results as pretended.
pub const PRETENDED: &str = "pretended";

/// Service times are drawn from this seed: the same arguments, the same times.
const SEED: u128 = 0x7072_6574_656e_6365;

/// How a pretended tenant behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pretence {
    /// Mean time that one unit of work takes.
    pub service: Nanos,
    /// Service times are uniform within this fraction of their mean, above and below; 0 to 1.
    pub spread: f64,
    /// Whether it looks at the clock until the time is over, as a program that waits for a GPU does by default, or
    /// sleeps.
    pub busy: bool,
    /// What goes wrong, and in which request (counted from 1, over all runs).
    pub fault: Option<(Fault, u64)>,
    /// Whether every check of its results fails.
    pub wrong_result: bool,
}

impl Default for Pretence {
    fn default() -> Self {
        Self { service: Nanos::from_micros(500), spread: 0.1, busy: true, fault: None, wrong_result: false }
    }
}

/// What can go wrong with a tenant, apart from its results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process ends without a word.
    Die,
    /// The request never completes.
    Hang,
    /// It writes a line that is no line of the protocol, and goes on.
    Rubbish,
}

/// What a fault does to the process; the host's part, because a workload cannot reach it.
pub trait Victim {
    /// Ends the process at once.
    fn die(&self);
    /// Writes a line that is no line of the protocol.
    fn rubbish(&self);
}

/// The workload.
pub struct Pretend {
    pretence: Pretence,
    clock: Rc<dyn Clock>,
    process: Rc<dyn Victim>,
    chance: Pcg64Dxsm,
    /// Service time that was submitted and not waited for.
    queued: Nanos,
    requests: u64,
    units: u64,
}

impl Pretend {
    /// A tenant that behaves like this.
    pub fn new(pretence: Pretence, clock: Rc<dyn Clock>, process: Rc<dyn Victim>) -> Self {
        let chance = Pcg64Dxsm::new(SEED, 1);
        Self { pretence, clock, process, chance, queued: Nanos::ZERO, requests: 0, units: 0 }
    }

    fn fail(&self, fault: Fault) {
        match fault {
            Fault::Die => self.process.die(),
            Fault::Rubbish => self.process.rubbish(),
            Fault::Hang => loop {
                self.clock.sleep(Nanos::from_secs(1));
            },
        }
    }
}

impl Workload for Pretend {
    fn identity(&self) -> Identity {
        Identity { name: PRETEND, unit: "request", cache_policy: None }
    }

    fn about(&self) -> BTreeMap<String, String> {
        let Pretence { service, spread, busy, .. } = self.pretence;
        let waits = if busy { "busy" } else { "asleep" };
        [
            (PRETENDED, "yes".to_owned()),
            ("service", format!("{service} +- {spread}")),
            ("waits", waits.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }

    fn begin(&mut self) -> Result<(), WorkloadError> {
        self.units = 0;
        Ok(())
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let unit = (self.chance.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        let factor = 1.0 + self.pretence.spread * (2.0 * unit - 1.0);
        self.queued = self.queued.saturating_add(Nanos((self.pretence.service.0 as f64 * factor) as u64));
        self.units += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        let done = self.clock.now().saturating_add(std::mem::take(&mut self.queued));
        self.requests += 1;
        if let Some((fault, request)) = self.pretence.fault
            && request == self.requests
        {
            self.fail(fault);
        }
        loop {
            let left = done.saturating_sub(self.clock.now());
            if left == Nanos::ZERO {
                return Ok(());
            }
            if self.pretence.busy { std::hint::spin_loop() } else { self.clock.sleep(left) }
        }
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        // As for real work, the sum depends on what was done; being wrong is off by one.
        let found = self.units + u64::from(self.pretence.wrong_result);
        Ok(Verdict::compare("the number of units done", found, self.units))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::super::serve::tests::{FakeClock, SLACK};
    use super::*;

    #[derive(Default)]
    struct Deeds(RefCell<Vec<&'static str>>);

    impl Victim for Deeds {
        fn die(&self) {
            self.0.borrow_mut().push("died");
        }
        fn rubbish(&self) {
            self.0.borrow_mut().push("rubbish");
        }
    }

    /// The service times of 1000 units, ns, and what the tenant did wrong in which request.
    fn behaviour(pretence: Pretence) -> (Vec<u64>, Vec<(usize, &'static str)>, Verdict) {
        let (clock, deeds) = (FakeClock::default(), Rc::new(Deeds::default()));
        let mut pretend = Pretend::new(pretence, Rc::new(clock.clone()), deeds.clone());
        pretend.begin().unwrap();
        let (mut times, mut wrong) = (Vec::new(), Vec::new());
        for request in 1..=1000 {
            let before = clock.now();
            pretend.submit().unwrap();
            pretend.wait().unwrap();
            times.push((clock.now() - before).0);
            wrong.extend(deeds.0.borrow_mut().drain(..).map(|deed| (request, deed)));
        }
        (times, wrong, pretend.check().unwrap())
    }

    #[test]
    fn it_takes_as_long_as_it_was_told() {
        let pretence = Pretence { service: Nanos::from_micros(100), spread: 0.2, ..Pretence::default() };
        let (times, wrong, verdict) = behaviour(pretence);
        assert!(times.iter().all(|time| (80_000..=120_000 + SLACK).contains(time)));
        let mean = times.iter().sum::<u64>() / 1000;
        assert!((98_000..102_000 + SLACK).contains(&mean), "{mean}");
        assert!(times.iter().min() < Some(&83_000) && times.iter().max() > Some(&118_000));
        assert_eq!((wrong, verdict), (vec![], Verdict::right(1000)));
    }

    #[test]
    fn it_fails_when_it_was_told() {
        let failing = |fault| behaviour(Pretence { fault: Some((fault, 7)), ..Pretence::default() }).1;
        assert_eq!(failing(Fault::Die), [(7, "died")]);
        assert_eq!(failing(Fault::Rubbish), [(7, "rubbish")]);
        let wrong = behaviour(Pretence { wrong_result: true, ..Pretence::default() }).2.wrong;
        assert_eq!(wrong.as_deref(), Some("the number of units done is 0x3e9 and should be 0x3e8"));
    }
}
