use std::io::{BufReader, PipeReader, PipeWriter, pipe};
use std::rc::Rc;
use std::thread::JoinHandle;

use super::super::pretend::{Fault, Pretence, Pretend, Victim};
use super::super::serve::tests::{FakeClock, SLACK};
use super::*;
use crate::load::Load;
use crate::protocol::Request;

/// The process, as the one who started it sees it.
struct Process {
    input: Option<PipeWriter>,
    output: BufReader<PipeReader>,
    thread: JoinHandle<Result<(), HostError>>,
}

/// Writes rubbish to the real output; dying is for processes.
struct Deeds(Arc<Output>);

impl Victim for Deeds {
    fn die(&self) {}
    fn rubbish(&self) {
        self.0.write("rubbish\n");
    }
}

impl Process {
    /// Pretended tenants with these names, on clocks that stand still.
    fn start(tags: &[&str], pretence: Pretence) -> Self {
        let make = move |index: usize, output: &Arc<Output>| {
            if pretence.service.0 == index as u64 + 100 {
                return Err(WorkloadError::Unfit("no room".into()));
            }
            let clock = FakeClock::default();
            let process = Rc::new(Deeds(Arc::clone(output)));
            let workload = Pretend::new(pretence, Rc::new(clock.clone()), process);
            Ok(Made { workload: Box::new(workload), clock: Box::new(clock), about: BTreeMap::new() })
        };
        let tenants: Vec<Hosted> = tags
            .iter()
            .map(|tag| Hosted { tag: (*tag).into(), class: Class::BestEffort, sleeps: true })
            .collect();
        let ((from, input), (output, to)) = (pipe().unwrap(), pipe().unwrap());
        let thread = std::thread::spawn(move || host(&tenants, Arc::new(make), BufReader::new(from), to));
        Self { input: Some(input), output: BufReader::new(output), thread }
    }

    fn raw(&mut self, line: &str) {
        self.input.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }

    fn tell(&mut self, tenant: Option<&str>, message: ToTenant) {
        self.raw(&Line { tenant: tenant.map(str::to_owned), message }.write());
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn hear(&mut self) -> Line<FromTenant> {
        Line::<FromTenant>::parse(self.line().as_bytes()).unwrap()
    }

    /// All that a run says, of the tenant that says it.
    fn hear_run(&mut self) -> (Option<String>, Vec<Request>, Done) {
        let mut requests = Vec::new();
        loop {
            match self.hear() {
                Line { message: FromTenant::Request(request), .. } => requests.push(request),
                Line { tenant, message: FromTenant::Done(done) } => return (tenant, requests, done),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Ends the input; what the process came to.
    fn end(mut self) -> Result<(), String> {
        self.input = None;
        self.thread.join().unwrap().map_err(|error| error.to_string())
    }
}

fn asked(run: u64, load: Load, requests_max: u64) -> ToTenant {
    ToTenant::Run(Run { run, load, begin: 0, requests_max })
}

#[test]
fn a_tenant_says_ready_runs_and_ends() {
    let mut process = Process::start(&["only"], Pretence::default());
    let Line { tenant: None, message: FromTenant::Ready(ready) } = process.hear() else { panic!() };
    assert_eq!((ready.pid, ready.about["pretended"].as_str()), (std::process::id(), "yes"));
    for (run, wanted) in [(7, 3000), (8, 5)] {
        process.tell(None, asked(run, Load::BACK_TO_BACK, wanted));
        let (tenant, requests, done) = process.hear_run();
        assert_eq!((tenant, done.run, done.check.as_str()), (None, run, "ok"));
        assert_eq!((done.requests, requests.len() as u64), (wanted, wanted));
        assert!(done.host_gap_ns.unwrap() <= SLACK);
    }
    assert_eq!(process.end(), Ok(()));
}

#[test]
fn a_stop_ends_the_run_in_progress_and_no_other() {
    let mut process = Process::start(&["only"], Pretence::default());
    process.hear();
    // As good as endless on a clock that sleeps in no time; the stop makes it end.
    process.tell(None, asked(1, Load::Periodic { period_ns: 60_000_000_000 }, 1_000_000));
    process.tell(None, ToTenant::Stop(Stop { run: 1 }));
    let (_, requests, done) = process.hear_run();
    assert_eq!((done.run, done.requests), (1, requests.len() as u64));
    // A stop of another run, and one that comes late, change nothing.
    process.tell(None, ToTenant::Stop(Stop { run: 1 }));
    process.tell(None, asked(2, Load::BACK_TO_BACK, 4));
    process.tell(None, ToTenant::Stop(Stop { run: 9 }));
    assert_eq!(process.hear_run().2.requests, 4);
    process.tell(None, ToTenant::Exit(Exit {}));
    assert_eq!(process.end(), Ok(()));
}

#[test]
fn several_tenants_are_told_apart() {
    let mut process = Process::start(&["a", "b"], Pretence::default());
    let mut ready: Vec<_> = (0..2).map(|_| process.hear().tenant.unwrap()).collect();
    ready.sort();
    assert_eq!(ready, ["a", "b"]);
    for tag in ["b", "a"] {
        process.tell(Some(tag), asked(1, Load::BACK_TO_BACK, 2));
        assert_eq!(process.hear_run().0.as_deref(), Some(tag));
    }
    process.tell(None, ToTenant::Exit(Exit {}));
    assert_eq!(process.end(), Ok(()));
}

#[test]
fn what_goes_wrong_is_said() {
    // The first tenant has no room (service time 100 ns); the other goes on.
    let no_room = Pretence { service: partywall_core::units::Nanos(100), ..Pretence::default() };
    let mut process = Process::start(&["a", "b"], no_room);
    let mut said = [process.line(), process.line()];
    said.sort();
    assert_eq!(said[0], r#"{"tenant":"a","failed":{"message":"no room"}}"#);
    assert!(said[1].contains(r#""tenant":"b","ready""#), "{}", said[1]);
    process.tell(Some("b"), asked(1, Load::BACK_TO_BACK, 2));
    process.hear_run();
    assert_eq!(process.end(), Err("tenant a: no room".into()));

    let wrong = Pretence { wrong_result: true, ..Pretence::default() };
    let mut process = Process::start(&["only"], wrong);
    process.hear();
    process.tell(None, asked(1, Load::BACK_TO_BACK, 2));
    assert_eq!(process.hear_run().2.check, "the number of units done is 0x3 and should be 0x2");
    assert_eq!(process.end(), Ok(()));

    let rubbish = Pretence { fault: Some((Fault::Rubbish, 2)), ..Pretence::default() };
    let mut process = Process::start(&["only"], rubbish);
    process.hear();
    process.tell(None, asked(1, Load::BACK_TO_BACK, 2));
    assert_eq!(process.line(), "rubbish");
    process.hear_run();
    assert_eq!(process.end(), Ok(()));
}

#[test]
fn input_that_is_no_protocol_ends_the_process() {
    let cases = [
        ("{\"run\": 1}\n", "not a line of the protocol"),
        ("nonsense\n", "not a line of the protocol"),
        ("{\"tenant\":\"c\",\"exit\":{}}\n", "there is no tenant `c` here"),
        ("{\"stop\":{\"run\":1}}\n", "name one in `tenant`"),
        (&format!("{}\n", "x".repeat(LINE_MAX + 10)), "a line of more than"),
    ];
    for (line, part) in cases {
        let mut process = Process::start(&["a", "b"], Pretence::default());
        process.hear();
        process.raw(line);
        let error = process.end().unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}
