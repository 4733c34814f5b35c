//! A run: requests arrive, calls leave and return, ticks pass, in the order of virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quotagate_protocol::Fixed;
use quotagate_quota::decision::{Admission, Decision};
use quotagate_quota::time::Monotonic;
use quotagate_quota::worker::{AnsweredBy, CallEnd, CallFault, CallId, Submitted, Worker};

use crate::audit::Audit;
use crate::heap;
use crate::network::{End, Network};
use crate::report::{Measured, Memory, Report};
use crate::setup::{Setup, TIMEOUT};
use crate::store::Store;
use crate::traffic::{Request, Traffic};

/// The pause between two ticks of a worker, as in the filter.
const TICK: Duration = Duration::from_millis(10);
/// The approximate time since the Unix epoch at the start of a run. A run starts with a window.
const EPOCH_S: u64 = 1_800_000_000;

/// What is simulated, in mid-run.
struct World {
    now: Duration,
    epoch: Duration,
    traffic: Traffic,
    network: Network,
    store: Store,
    workers: Vec<Worker<Waiting>>,
    messages: BinaryHeap<Reverse<Message>>,
    serial: u64,
    audit: Audit,
    measured: Measured,
    /// Requests that are not decided yet.
    waiting: u64,
}

/// A request that waits.
#[derive(Debug)]
struct Waiting {
    partition: usize,
    since: Duration,
}

/// An event of a message. The earliest is the smallest; of two at the same time, the one that was
/// sent first.
struct Message {
    at: Duration,
    serial: u64,
    proxy: usize,
    call: CallId,
    event: Event,
}

enum Event {
    /// The store gets a call. The caller gets its reply so much later, or nothing.
    Store(Vec<u8>, Option<Duration>),
    Reply(Vec<u8>),
    Timeout,
}

/// Runs the simulation. `progress` is called with the completed part, from 0 to 1.
///
/// # Errors
/// When the setup is impossible, or a message is one that no store would accept.
pub fn run(setup: &Setup, mut progress: impl FnMut(f64)) -> Result<Report> {
    let mut world = World::new(setup)?;
    let proxies = world.workers.len();
    let mut warming = true;
    let (mut gap, mut request) = world.traffic.draw();
    let mut arrival = gap;
    let mut ticks = 0_u32;
    // Requests that wait at the end are decided by their deadline plus a tick.
    let end = setup.length + TIMEOUT + 2 * TICK;
    loop {
        let tick =
            TICK * (ticks / proxies as u32) + TICK * (ticks % proxies as u32) / proxies as u32;
        let message = world.messages.peek().map_or(Duration::MAX, |Reverse(message)| message.at);
        let next = tick.min(message).min(arrival);
        if warming && next >= setup.warm_up {
            warming = false;
            world.measured = Measured::default();
            world.store.work = Default::default();
        }
        if next > end {
            break;
        }
        world.now = next;
        if next == message {
            if let Some(Reverse(message)) = world.messages.pop() {
                world.deliver(message)?;
            }
        } else if next == arrival {
            world.arrive(request)?;
            (gap, request) = world.traffic.draw();
            arrival = if arrival + gap < setup.length { arrival + gap } else { Duration::MAX };
        } else {
            world.tick(ticks as usize % proxies)?;
            if ticks.is_multiple_of(proxies as u32) {
                progress(next.as_secs_f64() / end.as_secs_f64());
            }
            ticks += 1;
        }
    }
    Ok(world.end(setup))
}

impl World {
    fn new(setup: &Setup) -> Result<Self> {
        let window = Fixed::new(setup.window_s.get(), 0).context("a window of this length")?;
        let epoch = Duration::from_secs(EPOCH_S - EPOCH_S % u64::from(setup.window_s.get()));
        let config = setup.config()?;
        let partitions = setup.fleet.partitions.get() as usize;
        let worker = |i: u32| Worker::new(Arc::clone(&config), setup.seed ^ u64::from(i) << 32);
        Ok(Self {
            now: Duration::ZERO,
            epoch,
            traffic: Traffic::new(setup, window)?,
            network: Network::new(setup.network, setup.seed)?,
            store: Store::new(partitions, window),
            workers: (0..setup.fleet.proxies.get()).map(worker).collect(),
            messages: BinaryHeap::new(),
            serial: 0,
            audit: Audit::new(setup.quota, window, epoch, setup.length, partitions),
            measured: Measured::default(),
            waiting: 0,
        })
    }

    fn arrive(&mut self, Request { proxy, partition }: Request) -> Result<()> {
        self.audit.demand(partition, self.now)?;
        let check = self.traffic.check(partition);
        let now = Monotonic::new(self.now);
        let who = Waiting { partition, since: self.now };
        if let Submitted::Decided(decision) = self.worker(proxy)?.submit(who, vec![check], now) {
            self.measured.waits.none();
            return self.decided(partition, &decision);
        }
        self.waiting += 1;
        self.settle(proxy)
    }

    fn tick(&mut self, proxy: usize) -> Result<()> {
        let now = Monotonic::new(self.now);
        let worker = self.worker(proxy)?;
        worker.take_tally();
        if worker.is_idle() {
            return Ok(());
        }
        worker.tick(now);
        self.settle(proxy)
    }

    fn deliver(&mut self, Message { proxy, call, event, .. }: Message) -> Result<()> {
        let now = Monotonic::new(self.now);
        match event {
            Event::Store(body, back) => {
                let reply = self.store.carry_out(&body, self.epoch + self.now)?;
                if let Some(back) = back {
                    self.send(back, proxy, call, Event::Reply(reply));
                }
                return Ok(());
            }
            Event::Reply(body) => {
                let size = body.len();
                let end = CallEnd::Answered { status: 200, by: AnsweredBy::Store, body, size };
                self.worker(proxy)?.call_ended(call, &end, now);
            }
            Event::Timeout => self.worker(proxy)?.call_not_sent(call, &CallFault::TimedOut, now),
        }
        self.settle(proxy)
    }

    /// Sends the calls that are due, and records the decided requests.
    fn settle(&mut self, proxy: usize) -> Result<()> {
        let now = Monotonic::new(self.now);
        while let Some(call) = self.worker(proxy)?.next_call(now) {
            let fate = self.network.call(call.timeout);
            self.measured.calls += 1;
            let (reply, ended) = match fate.ends {
                End::Reply(after) => (Some(after), after),
                End::Timeout(after) => (None, after),
            };
            self.measured.under_way += ended;
            if let Some(arrives) = fate.arrives {
                let back = reply.map(|reply| reply.saturating_sub(arrives));
                self.send(arrives, proxy, call.id, Event::Store(call.body(), back));
            }
            if let End::Timeout(after) = fate.ends {
                self.send(after, proxy, call.id, Event::Timeout);
            }
        }
        while let Some((Waiting { partition, since }, decision)) =
            self.worker(proxy)?.next_decision()
        {
            self.waiting -= 1;
            self.measured.waits.add(self.now.saturating_sub(since));
            self.decided(partition, &decision)?;
        }
        Ok(())
    }

    fn decided(&mut self, partition: usize, decision: &Decision) -> Result<()> {
        match decision {
            Decision::Admit(Admission { standings, .. }) => {
                for standing in standings.iter().filter(|standing| standing.granted) {
                    self.audit.admit(partition, standing.balance.resets)?;
                }
            }
            Decision::Refuse(_) => self.measured.refused += 1,
            Decision::Unavailable(_) => self.measured.unavailable += 1,
        }
        Ok(())
    }

    fn send(&mut self, delay: Duration, proxy: usize, call: CallId, event: Event) {
        self.serial += 1;
        self.messages.push(Reverse(Message {
            at: self.now + delay,
            serial: self.serial,
            proxy,
            call,
            event,
        }));
    }

    fn worker(&mut self, proxy: usize) -> Result<&mut Worker<Waiting>> {
        self.workers.get_mut(proxy).with_context(|| format!("no proxy {proxy}"))
    }

    fn end(mut self, setup: &Setup) -> Report {
        let mut memory = Memory::default();
        while let Some(worker) = self.workers.pop() {
            let before = heap::held();
            drop(worker);
            let bytes = u64::try_from(before - heap::held()).unwrap_or_default()
                + size_of::<Worker<Waiting>>() as u64;
            memory.all += bytes;
            memory.most = memory.most.max(bytes);
        }
        Report {
            setup: setup.clone(),
            measured: self.measured,
            work: self.store.work,
            totals: self.audit.totals(),
            memory,
            undecided: self.waiting,
        }
    }
}

impl Ord for Message {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.serial).cmp(&(other.at, other.serial))
    }
}

impl PartialOrd for Message {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Message {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Message {}
