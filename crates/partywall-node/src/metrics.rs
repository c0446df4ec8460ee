//! The metrics, each once: from this list come what Prometheus reads and the page that documents it.

use std::fmt::Write as _;

use partywall_core::guarantee::{Status, Verdict};
use partywall_core::units::Nanos;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::facts::{Contexts, DirectionView, NodeView, TenantView};

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Only grows while the node runs.
    Counter,
    Gauge,
}

/// A metric.
struct Metric {
    /// Without the `_total` that counters get.
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    samples: fn(&NodeView) -> Vec<Sample>,
}

/// Values of the metric's labels, in their order, and its own.
type Sample = (Vec<String>, f64);

const TENANT: &[&str] = &["tenant"];
const DIRECTION: &[&str] = &["tenant", "direction"];

const METRICS: &[Metric] = &[
    Metric {
        name: "partywall_node_info",
        kind: Kind::Gauge,
        labels: &["version", "generation"],
        help: "Always 1; the generation differs between any two starts of a node",
        samples: |node| vec![(vec![node.version.to_owned(), node.generation.clone()], 1.0)],
    },
    Metric {
        name: "partywall_node_uptime_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "How long the node has been running",
        samples: |node| vec![(Vec::new(), node.uptime_ns.as_secs())],
    },
    Metric {
        name: "partywall_node_contexts_measured",
        kind: Kind::Gauge,
        labels: &[],
        help: "1 if the memory of contexts is measured, 0 if it is an estimate",
        samples: |node| vec![(Vec::new(), truth(node.contexts == Contexts::Measured))],
    },
    Metric {
        name: "partywall_node_gpu_faults",
        kind: Kind::Counter,
        labels: &[],
        help: "Faults of the GPU in clients of the node's MPS daemon",
        samples: |node| vec![(Vec::new(), node.faults as f64)],
    },
    Metric {
        name: "partywall_node_gpu_faults_contained",
        kind: Kind::Counter,
        labels: &[],
        help: "Those of them that ended nobody's work but that of the tenant that caused them; the others ended that of all clients",
        samples: |node| vec![(Vec::new(), node.faults_contained as f64)],
    },
    Metric {
        name: "partywall_node_recover_seconds",
        kind: Kind::Gauge,
        labels: &[],
        help: "From the last fault that ended all clients to the first good request of a latency-sensitive tenant, or of anybody where there is none; absent before that",
        samples: |node| node.recover_ns.iter().map(|time| (Vec::new(), time.as_secs())).collect(),
    },
    Metric {
        name: "partywall_node_turns",
        kind: Kind::Counter,
        labels: &[],
        help: "Turns of best-effort processes that compute one at a time because their time slices are short; absent where they need not",
        samples: |node| node.turns.iter().map(|turns| (Vec::new(), turns.turns as f64)).collect(),
    },
    Metric {
        name: "partywall_node_turn_overlaps",
        kind: Kind::Counter,
        labels: &[],
        help: "How often something of one of them was found on the device in the turn of another one; slices are longer for ten seconds then",
        samples: |node| node.turns.iter().map(|turns| (Vec::new(), turns.overlaps as f64)).collect(),
    },
    Metric {
        name: "partywall_gpu_memory_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "All memory of the GPU",
        samples: |node| vec![(Vec::new(), node.memory_bytes.0 as f64)],
    },
    Metric {
        name: "partywall_gpu_memory_leased_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Memory of the GPU that processes of tenants were given",
        samples: |node| vec![(Vec::new(), node.memory_leased_bytes.0 as f64)],
    },
    Metric {
        name: "partywall_tenant_info",
        kind: Kind::Gauge,
        labels: &["tenant", "class"],
        help: "Always 1; the class of the tenant",
        samples: |node| {
            let info = |tenant: &TenantView| (vec![tenant.name.clone(), tenant.class.to_string()], 1.0);
            node.tenants.iter().map(info).collect()
        },
    },
    Metric {
        name: "partywall_tenant_guaranteed",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "1 if everything that was promised to the tenant is enforced, 0 if not; absent while none of its processes has said what it uses",
        samples: |node| {
            let sample = |tenant: &TenantView| Some((vec![tenant.name.clone()], truth(tenant.guaranteed?)));
            node.tenants.iter().filter_map(sample).collect()
        },
    },
    Metric {
        name: "partywall_tenant_promise_kept",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "1 if what was promised about the tenant's requests is kept, 0 if it is broken, both as measured within the last minute; absent while it is not guaranteed",
        samples: |node| {
            each_promise(node, |status| match status.verdict {
                Verdict::Kept => Some(1.0),
                Verdict::Broken => Some(0.0),
                Verdict::NotGuaranteed => None,
            })
        },
    },
    Metric {
        name: "partywall_tenant_slowdown_ratio",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "p99 of requests beside best-effort tenants within the last minute, over the p99 alone; absent without 1 000 requests",
        samples: |node| each_promise(node, |status| status.slowdown),
    },
    Metric {
        name: "partywall_tenant_promise_margin_ratio",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "How far that is below what was promised, as a fraction of it; negative above it",
        samples: |node| each_promise(node, |status| status.margin),
    },
    Metric {
        name: "partywall_tenant_promise_bound_seconds",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "What 99 of 100 requests may take by what was promised",
        samples: |node| each_promise(node, |status| status.bound_ns.map(Nanos::as_secs)),
    },
    Metric {
        name: "partywall_tenant_requests_above_ratio",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "The part of the requests beside best-effort tenants, within the last minute, that took longer than that",
        samples: |node| each_promise(node, |status| status.above?.share),
    },
    Metric {
        name: "partywall_tenant_request_p99_seconds",
        kind: Kind::Gauge,
        labels: &["tenant", "beside"],
        help: "p99 of requests: beside best-effort tenants within the last minute (beside=\"best-effort\"), and alone (beside=\"nobody\")",
        samples: |node| {
            let both = |tenant: &TenantView| -> Option<[Option<Sample>; 2]> {
                let status = &tenant.promise.as_ref()?.status;
                let sides = [("best-effort", status.beside.p99_ns), ("nobody", status.baseline.p99_ns)];
                Some(sides.map(|(beside, p99)| {
                    Some((vec![tenant.name.clone(), beside.to_owned()], p99?.as_secs()))
                }))
            };
            node.tenants.iter().filter_map(both).flatten().flatten().collect()
        },
    },
    Metric {
        name: "partywall_tenant_requests",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Requests of latency-sensitive tenants, from a first launch to when all was through; counted while the node decides about launches",
        samples: |node| each_promise(node, |status| Some(status.requests as f64)),
    },
    Metric {
        name: "partywall_tenant_requests_lost",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Requests besides, of which nothing is known: there were more than could be read",
        samples: |node| each_promise(node, |status| Some(status.lost as f64)),
    },
    Metric {
        name: "partywall_tenant_promise_breaks",
        kind: Kind::Counter,
        labels: TENANT,
        help: "How often the promise was broken beyond doubt",
        samples: |node| each_promise(node, |status| Some(status.breaks as f64)),
    },
    Metric {
        name: "partywall_tenant_restarts",
        kind: Kind::Counter,
        labels: TENANT,
        help: "How often the tenant's command was started again",
        samples: |node| each(node, |tenant| f64::from(tenant.restarts)),
    },
    Metric {
        name: "partywall_tenant_gpu_faults",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Faults of the GPU that the tenant caused, as far as that is known",
        samples: |node| each(node, |tenant| f64::from(tenant.faults)),
    },
    Metric {
        name: "partywall_tenant_processes",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "Processes that use the GPU now",
        samples: |node| each(node, |tenant| tenant.processes.len() as f64),
    },
    Metric {
        name: "partywall_tenant_processes_registered",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Processes that have registered",
        samples: |node| each(node, |tenant| tenant.processes_total as f64),
    },
    Metric {
        name: "partywall_tenant_processes_refused",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Processes that were not let in",
        samples: |node| each(node, |tenant| tenant.processes_refused as f64),
    },
    Metric {
        name: "partywall_tenant_memory_quota_bytes",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "GPU memory that the tenant may hold",
        samples: |node| each(node, |tenant| tenant.memory.quota_bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_memory_leased_bytes",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "GPU memory that its processes were given, used or not",
        samples: |node| each(node, |tenant| tenant.memory.leased_bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_memory_used_bytes",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "GPU memory that it holds, contexts included",
        samples: |node| each(node, |tenant| tenant.memory.used_bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_memory_context_bytes",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "The part of it that contexts take",
        samples: |node| each(node, |tenant| tenant.memory.context_bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_memory_uncounted_bytes",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "GPU memory that it holds and was not given; above zero, its quota does not hold",
        samples: |node| each(node, |tenant| tenant.memory.uncounted_bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_memory_path_bytes",
        kind: Kind::Gauge,
        labels: &["tenant", "path"],
        help: "Memory that it has allocated in this way, before rounding; host memory that the device can reach and imports are listed and cost nothing",
        samples: |node| {
            let paths = |tenant: &TenantView| {
                let labelled = |(&path, bytes): (&&'static str, &partywall_core::units::Bytes)| {
                    (vec![tenant.name.clone(), path.to_owned()], bytes.0 as f64)
                };
                tenant.memory.by_path.iter().map(labelled).collect::<Vec<_>>()
            };
            node.tenants.iter().flat_map(paths).collect()
        },
    },
    Metric {
        name: "partywall_tenant_allocations",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Allocations granted",
        samples: |node| each(node, |tenant| tenant.memory.allocations as f64),
    },
    Metric {
        name: "partywall_tenant_allocations_refused",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Allocations refused because of the quota",
        samples: |node| each(node, |tenant| tenant.memory.refusals as f64),
    },
    Metric {
        name: "partywall_tenant_copy_bytes",
        kind: Kind::Counter,
        labels: DIRECTION,
        help: "Bytes of copies that waited for their turn on the link",
        samples: |node| each_direction(node, |side| side.bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_copies",
        kind: Kind::Counter,
        labels: DIRECTION,
        help: "Those copies",
        samples: |node| each_direction(node, |side| side.copies as f64),
    },
    Metric {
        name: "partywall_tenant_copy_wait_seconds",
        kind: Kind::Counter,
        labels: DIRECTION,
        help: "How long they waited, from being ready to the start of their first packet, summed up",
        samples: |node| each_direction(node, |side| side.wait_ns.as_secs()),
    },
    Metric {
        name: "partywall_tenant_copy_direct_bytes",
        kind: Kind::Counter,
        labels: DIRECTION,
        help: "Bytes of copies so small that they went straight to the driver",
        samples: |node| each_direction(node, |side| side.direct_bytes.0 as f64),
    },
    Metric {
        name: "partywall_tenant_copies_direct",
        kind: Kind::Counter,
        labels: DIRECTION,
        help: "Those copies",
        samples: |node| each_direction(node, |side| side.direct_copies as f64),
    },
    Metric {
        name: "partywall_tenant_packets_late",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Packets of copies that were not through in time, so that the others went on without",
        samples: |node| each(node, |tenant| tenant.late_packets as f64),
    },
    Metric {
        name: "partywall_tenant_launches",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Kernels launched one by one",
        samples: |node| each(node, |tenant| tenant.launches as f64),
    },
    Metric {
        name: "partywall_tenant_graph_launches",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Graphs launched",
        samples: |node| each(node, |tenant| tenant.graph_launches as f64),
    },
    Metric {
        name: "partywall_tenant_graphs_whole",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "Graphs that cannot be launched in pieces",
        samples: |node| each(node, |tenant| f64::from(tenant.graphs_whole)),
    },
    Metric {
        name: "partywall_tenant_graphs_unsqueezed",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "Graphs that are held while the tenant is squeezed",
        samples: |node| each(node, |tenant| f64::from(tenant.graphs_unsqueezed)),
    },
    Metric {
        name: "partywall_tenant_squeezed_launches",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Launches onto the SMs that are left to the tenant while it is squeezed",
        samples: |node| each(node, |tenant| tenant.squeezed_launches as f64),
    },
    Metric {
        name: "partywall_tenant_unsqueezed_launches",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Launches that could not go there while the tenant was squeezed",
        samples: |node| each(node, |tenant| tenant.unsqueezed_launches as f64),
    },
    Metric {
        name: "partywall_tenant_resize_seconds",
        kind: Kind::Gauge,
        labels: TENANT,
        help: "From the last change of the tenant's SMs to the first launch that followed it",
        samples: |node| each(node, |tenant| tenant.resize_ns.as_secs()),
    },
    Metric {
        name: "partywall_tenant_launch_wait_seconds",
        kind: Kind::Counter,
        labels: TENANT,
        help: "Time that launches waited for their turn, summed up over threads",
        samples: |node| each(node, |tenant| tenant.held_ns.as_secs()),
    },
    Metric {
        name: "partywall_tenant_device_busy_seconds",
        kind: Kind::Counter,
        labels: TENANT,
        help: "For how long the device was busy with launches of a best-effort tenant, summed up over streams, while launches are decided about",
        samples: |node| each(node, |tenant| tenant.busy_ns.as_secs()),
    },
    Metric {
        name: "partywall_tenant_entry_points",
        kind: Kind::Gauge,
        labels: &["tenant", "disposition"],
        help: "Entry points of the driver that it has resolved or called; a tenant with unknown ones is not guaranteed, and the API names them",
        samples: |node| {
            let counts = |tenant: &TenantView| {
                let coverage = &tenant.coverage;
                [
                    ("enforced", coverage.enforced.len()),
                    ("passed", coverage.passed.len()),
                    ("refused", coverage.refused.len()),
                    ("unknown", coverage.unknown.len()),
                ]
                .map(|(disposition, count)| (vec![tenant.name.clone(), disposition.to_owned()], count as f64))
            };
            node.tenants.iter().flat_map(counts).collect()
        },
    },
];

/// The metrics as Prometheus reads them.
pub fn text(node: NodeView) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Shown(node)));
    let mut text = String::new();
    // Writing to a string does not fail, and nothing else there does.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// The page that documents them.
pub fn reference() -> String {
    let mut page = "<!-- Generated by `cargo xtask generate` from crates/partywall-node/src/metrics.rs: edit that. -->\n\n# Metrics\n\nWhat a node \
                    tells at `/metrics`, in the text format of Prometheus (OpenMetrics). Its address stands in the file `http` of the node's folder. Counts go on \
                    over the restarts of a tenant, and start again with the node. Everything about copies, launches and allocations is \
                    what the tenants' own processes count; quota, leases and contexts are the node's.\n\n| metric | kind | labels | what |\n|---|---|---|---|\n"
        .to_owned();
    for metric in METRICS {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind) = match metric.kind {
            Kind::Counter => (format!("{}_total", metric.name), "counter"),
            Kind::Gauge => (metric.name.to_owned(), "gauge"),
        };
        let _ = writeln!(page, "| `{name}` | {kind} | {} | {} |", labels.join(", "), metric.help);
    }
    page.push_str(
        "\nThe same as JSON, with the names behind the numbers: `/api/v1/node` and `/api/v1/tenants`.\n",
    );
    page
}

fn truth(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

fn each(node: &NodeView, value: fn(&TenantView) -> f64) -> Vec<Sample> {
    node.tenants.iter().map(|tenant| (vec![tenant.name.clone()], value(tenant))).collect()
}

/// Of latency-sensitive tenants, where there is a value.
fn each_promise(node: &NodeView, value: fn(&Status) -> Option<f64>) -> Vec<Sample> {
    let sample =
        |tenant: &TenantView| Some((vec![tenant.name.clone()], value(&tenant.promise.as_ref()?.status)?));
    node.tenants.iter().filter_map(sample).collect()
}

fn each_direction(node: &NodeView, value: fn(&DirectionView) -> f64) -> Vec<Sample> {
    let sides = |tenant: &TenantView| {
        [("host-to-device", tenant.host_to_device), ("device-to-host", tenant.device_to_host)]
            .map(|(direction, side)| (vec![tenant.name.clone(), direction.to_owned()], value(&side)))
    };
    node.tenants.iter().flat_map(sides).collect()
}

#[derive(Debug)]
struct Shown(NodeView);

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for metric in METRICS {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut descriptor = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (values, value) in (metric.samples)(&self.0) {
                let labels: Vec<(&str, String)> = metric.labels.iter().copied().zip(values).collect();
                if labels.is_empty() {
                    // A family without labels would be written with empty braces.
                    match metric.kind {
                        Kind::Counter => ConstCounter::new(value).encode(descriptor)?,
                        Kind::Gauge => ConstGauge::new(value).encode(descriptor)?,
                    }
                    break;
                }
                let sample = descriptor.encode_family(&labels)?;
                match metric.kind {
                    Kind::Counter => ConstCounter::new(value).encode(sample)?,
                    Kind::Gauge => ConstGauge::new(value).encode(sample)?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::facts::tests::node;

    #[test]
    fn every_metric_is_told_and_documented() {
        let text = text(node());
        let page = reference();
        for metric in METRICS {
            let name = match metric.kind {
                Kind::Counter => format!("{}_total", metric.name),
                Kind::Gauge => metric.name.to_owned(),
            };
            assert!(text.lines().any(|line| line.starts_with(&name)), "{name} is not told:\n{text}");
            assert!(page.contains(&format!("| `{name}` |")), "{name} is not documented");
        }
        let names: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for line in [
            "partywall_tenant_copy_bytes_total{tenant=\"detector\",direction=\"device-to-host\"} 4096.0",
            "partywall_tenant_memory_path_bytes{tenant=\"detector\",path=\"vmm\"} 2097152.0",
            "partywall_tenant_guaranteed{tenant=\"detector\"} 0.0",
            "partywall_tenant_entry_points{tenant=\"detector\",disposition=\"unknown\"} 1.0",
            "partywall_gpu_memory_bytes 1000.0",
            "partywall_tenant_promise_kept{tenant=\"detector\"} 1.0",
            "partywall_tenant_slowdown_ratio{tenant=\"detector\"} 1.0",
            "partywall_tenant_promise_margin_ratio{tenant=\"detector\"} 0.5",
            "partywall_tenant_request_p99_seconds{tenant=\"detector\",beside=\"nobody\"} 0.001",
            "partywall_tenant_requests_total{tenant=\"detector\"} 6100.0",
            "partywall_tenant_promise_breaks_total{tenant=\"detector\"} 1.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn names_of_labels_and_their_number_fit_the_samples() {
        for metric in METRICS {
            for (values, _) in (metric.samples)(&node()) {
                assert_eq!(values.len(), metric.labels.len(), "{}", metric.name);
            }
        }
    }
}
