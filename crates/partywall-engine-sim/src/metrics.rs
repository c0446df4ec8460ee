//! `/metrics`, in the text format of Prometheus, under the names that vLLM gives them.

use std::fmt::Write as _;

use partywall_sim::serving::engine::EngineLoad;

use crate::faults::Fault;

/// What is seen of a replica.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// Its engine.
    pub load: EngineLoad,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Tokens of all answers.
    pub generated_tokens: u64,
    /// Tokens that were looked for in the cache.
    pub queried_tokens: u64,
    /// Those that were found.
    pub hit_tokens: u64,
    /// Requests that ended with all their tokens.
    pub finished: u64,
    /// Requests that ended otherwise.
    pub aborted: u64,
    /// Time to first token, in seconds of the engine.
    pub first_tokens: Histogram,
    /// The number that the next batch of events will get.
    pub event_number: u64,
    /// Restarts so far.
    pub generation: u64,
    /// Faults that last.
    pub lasting: Vec<Fault>,
    /// How often each fault has struck.
    pub struck: Vec<(&'static str, u64)>,
}

/// Upper bounds of the histogram's buckets in seconds: vLLM's for the time to first token.
const BUCKETS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];

/// How often something took how long.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    counts: [u64; BUCKETS.len()],
    sum: f64,
    all: u64,
}

impl Histogram {
    /// Once more, this many seconds.
    pub fn add(&mut self, seconds: f64) {
        if let Some(count) =
            BUCKETS.iter().position(|bound| seconds <= *bound).and_then(|at| self.counts.get_mut(at))
        {
            *count += 1;
        }
        self.sum += seconds;
        self.all += 1;
    }
}

/// The page of a replica, from the views of its ranks.
pub fn page(views: &[View], model: &str, block_tokens: u32) -> String {
    let mut page = Page { text: String::new(), model: escaped(model), views };
    page.gauge("vllm:num_requests_running", "Requests whose prompt is computed or that get tokens", |view| {
        view.load.running as f64
    });
    page.gauge("vllm:num_requests_waiting", "Requests whose prompt waits", |view| view.load.waiting as f64);
    let usage = |view: &View| view.load.pinned_blocks as f64 / view.load.cache_blocks.max(1) as f64;
    page.gauge("vllm:kv_cache_usage_perc", "The part of the cache that requests use, 0 to 1", usage);
    page.gauge("vllm:gpu_cache_usage_perc", "The same, under its earlier name", usage);
    page.counter(
        "vllm:prefix_cache_queries",
        "Tokens of prompts that were looked for in the cache",
        |view| view.queried_tokens,
    );
    page.counter("vllm:prefix_cache_hits", "Those that were found", |view| view.hit_tokens);
    page.counter("vllm:prompt_tokens", "Tokens of prompts", |view| view.prompt_tokens);
    page.counter("vllm:generation_tokens", "Tokens of answers", |view| view.generated_tokens);
    page.samples("vllm:request_success_total", "counter", "Requests that ended, by how", |view| {
        vec![
            ("finished_reason", "stop", view.finished as f64),
            ("finished_reason", "abort", view.aborted as f64),
        ]
    });
    page.histogram(
        "vllm:time_to_first_token_seconds",
        "From a request to its first token, in the engine's time",
    );
    page.head("vllm:cache_config_info", "gauge", "Always 1; what the cache is like");
    for (rank, view) in views.iter().enumerate() {
        let (block, blocks) = (block_tokens.to_string(), view.load.cache_blocks.to_string());
        page.sample(
            "vllm:cache_config_info",
            rank,
            &[("block_size", &block), ("num_gpu_blocks", &blocks)],
            1.0,
        );
    }
    page.gauge("partywall_engine_sim_held_blocks", "Blocks that hold something, in use or not", |view| {
        view.load.held_blocks as f64
    });
    page.gauge("partywall_engine_sim_used_blocks", "Those of them that are in use", |view| {
        view.load.pinned_blocks as f64
    });
    page.gauge(
        "partywall_engine_sim_event_number",
        "The number that the next batch of events will get",
        |view| view.event_number as f64,
    );
    page.counter("partywall_engine_sim_restarts", "Restarts by a fault", |view| view.generation);
    page.samples("partywall_engine_sim_faults_total", "counter", "How often each fault has struck", |view| {
        view.struck.iter().map(|(name, count)| ("fault", *name, *count as f64)).collect()
    });
    page.text
}

struct Page<'a> {
    text: String,
    /// Its name, ready to stand between quotes.
    model: String,
    /// By rank.
    views: &'a [View],
}

impl Page<'_> {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing into a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, rank: usize, labels: &[(&str, &str)], value: f64) {
        let more: String = labels.iter().map(|(label, value)| format!(",{label}=\"{value}\"")).collect();
        let _ =
            writeln!(self.text, "{name}{{engine=\"{rank}\",model_name=\"{}\"{more}}} {value}", self.model);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&View) -> f64) {
        self.head(name, "gauge", help);
        for (rank, view) in self.views.iter().enumerate() {
            self.sample(name, rank, &[], value(view));
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&View) -> u64) {
        let name = format!("{name}_total");
        self.head(&name, "counter", help);
        for (rank, view) in self.views.iter().enumerate() {
            self.sample(&name, rank, &[], value(view) as f64);
        }
    }

    /// Several of one label.
    fn samples(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        values: impl Fn(&View) -> Vec<(&'static str, &'static str, f64)>,
    ) {
        self.head(name, kind, help);
        for (rank, view) in self.views.iter().enumerate() {
            for (label, of, value) in values(view) {
                self.sample(name, rank, &[(label, of)], value);
            }
        }
    }

    fn histogram(&mut self, name: &str, help: &str) {
        self.head(name, "histogram", help);
        for (rank, view) in self.views.iter().enumerate() {
            let (histogram, mut below) = (&view.first_tokens, 0);
            for (bound, count) in BUCKETS.iter().zip(histogram.counts) {
                below += count;
                self.sample(&format!("{name}_bucket"), rank, &[("le", &bound.to_string())], below as f64);
            }
            self.sample(&format!("{name}_bucket"), rank, &[("le", "+Inf")], histogram.all as f64);
            self.sample(&format!("{name}_sum"), rank, &[], histogram.sum);
            self.sample(&format!("{name}_count"), rank, &[], histogram.all as f64);
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_head_for_every_name_and_its_samples_behind_it() {
        let mut first_tokens = Histogram::default();
        for seconds in [0.002, 0.3, 9_999.0] {
            first_tokens.add(seconds);
        }
        let load =
            EngineLoad { waiting: 2, running: 3, pinned_blocks: 10, held_blocks: 30, cache_blocks: 40 };
        let view = View {
            load,
            prompt_tokens: 7,
            generated_tokens: 8,
            queried_tokens: 7,
            hit_tokens: 5,
            finished: 1,
            aborted: 2,
            first_tokens,
            event_number: 4,
            generation: 0,
            lasting: Vec::new(),
            struck: vec![("hang", 1)],
        };
        let page = page(&[view.clone(), view], "a\"b", 16);
        for line in [
            "vllm:num_requests_running{engine=\"0\",model_name=\"a\\\"b\"} 3",
            "vllm:num_requests_running{engine=\"1\",model_name=\"a\\\"b\"} 3",
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"a\\\"b\"} 0.25",
            "vllm:prefix_cache_hits_total{engine=\"0\",model_name=\"a\\\"b\"} 5",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"0.5\"} 2",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"a\\\"b\",le=\"2560\"} 2",
            "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"a\\\"b\"} 3",
            "partywall_engine_sim_faults_total{engine=\"0\",model_name=\"a\\\"b\",fault=\"hang\"} 1",
        ] {
            assert!(page.lines().any(|one| one == line), "{line} is not in\n{page}");
        }
        let mut name = "";
        for line in page.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(head) => name = head.split(' ').next().unwrap(),
                None => {
                    assert!(line.starts_with(name) || line.starts_with("# HELP "), "{line} behind {name}")
                }
            }
        }
    }
}
