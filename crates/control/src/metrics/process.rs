//! The resources of the process, under the names of Prometheus' own client libraries. They come
//! from Linux' `/proc`.

use std::fmt;

use procfs::process::{LimitValue, Process};
use procfs::{boot_time_secs, page_size, ticks_per_second};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads `/proc` on every scrape.
#[derive(Debug)]
pub struct ProcessMetrics;

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(Seen { cpu, resident, virtual_memory, start, open, most, threads }) = Seen::now()
        else {
            return Ok(());
        };
        let help = "Processor time used, in user and in system mode";
        let cpu = ConstCounter::new(cpu);
        cpu.encode(encoder.encode_descriptor(
            "process_cpu_seconds",
            help,
            None,
            cpu.metric_type(),
        )?)?;
        let mut gauge = |name: &str, help: &str, value: f64| {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
        };
        gauge("process_resident_memory_bytes", "Memory in use", resident)?;
        gauge("process_virtual_memory_bytes", "Address space in use", virtual_memory)?;
        if let Some(start) = start {
            gauge(
                "process_start_time_seconds",
                "When the process began, since the Unix epoch",
                start,
            )?;
        }
        gauge("process_open_fds", "Open file descriptors", open)?;
        gauge("process_max_fds", "Most file descriptors that may be open", most)?;
        gauge("process_threads", "Threads", threads)
    }
}

struct Seen {
    cpu: f64,
    resident: f64,
    virtual_memory: f64,
    /// `None` if `/proc` shows only processes (systemd's `ProcSubset=pid`).
    start: Option<f64>,
    open: f64,
    most: f64,
    threads: f64,
}

impl Seen {
    /// `None` if `/proc` is missing or hidden.
    fn now() -> Option<Self> {
        let process = Process::myself().ok()?;
        let stat = process.stat().ok()?;
        let ticks = ticks_per_second() as f64;
        let most = match process.limits().ok()?.max_open_files.soft_limit {
            LimitValue::Value(most) => most as f64,
            LimitValue::Unlimited => f64::INFINITY,
        };
        Some(Self {
            cpu: stat.utime.saturating_add(stat.stime) as f64 / ticks,
            resident: stat.rss.saturating_mul(page_size()) as f64,
            virtual_memory: stat.vsize as f64,
            start: boot_time_secs().ok().map(|boot| boot as f64 + stat.starttime as f64 / ticks),
            open: process.fd_count().ok()? as f64,
            most,
            threads: stat.num_threads as f64,
        })
    }
}
