//! The dials of domains that proxies ask for, kept in memory.
//!
//! The store reads a domain once a second for [`WANTED`] after a proxy last asked for it, and at
//! once after a change by this store. It reads a view older than [`STALE`] again before it replies,
//! within [`PATIENCE`]. While the backend cannot be read, the last view stays. Each fault in the
//! data is logged once, not once a second.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use quotagate_protocol::CounterKey;
use quotagate_protocol::dials::{DialsReply, Report};
use quotagate_store::control::{Field, Snapshot};
use quotagate_store::store::StoreError;
use tokio::time::{timeout, timeout_at};

use super::reports::Known;
use super::view::View;
use crate::api::PolicyInfo;
use crate::control::ControlHandle;
use crate::record::DomainRecord;
use crate::record::documents::PublishedRules;
use crate::{MAX_DOMAINS, MAX_NAMES, millis};

/// How long a domain is read after a proxy last asked for it.
const WANTED: Duration = Duration::from_secs(60);
/// How often a domain is read.
const EVERY: Duration = Duration::from_secs(1);
/// How often a domain is read while the backend refuses reads.
const REFUSED: Duration = Duration::from_secs(10);
/// A view older than this is read again before the store replies.
const STALE: Duration = Duration::from_secs(2);
/// The longest that a proxy's request waits for a read; proxies give up after a second.
const PATIENCE: Duration = Duration::from_millis(700);
/// The longest that a single read within [`PATIENCE`] takes.
const TRY: Duration = Duration::from_millis(600);

/// The domains that proxies ask for: at most [`MAX_DOMAINS`]. Anyone who reaches the call address
/// can ask for domains that nobody has, so if there are more, those stay that have been in the
/// backend's list for longest.
pub struct Views {
    control: ControlHandle,
    watched: RwLock<HashMap<Box<str>, Arc<Watched>>>,
    /// Since when each domain has been in the backend's list, as last read.
    recorded: RwLock<HashMap<Box<str>, u64>>,
    /// Whether some domain has overrides of every partition that contains a party.
    has_patterns: AtomicBool,
}

/// Proxies ask for too many domains at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("filters already ask for {MAX_DOMAINS} domains, all known for longer than this one")]
pub struct Full;

/// A domain kept in memory.
pub struct Watched {
    /// Its name.
    pub name: Box<str>,
    version: AtomicU64,
    state: Mutex<State>,
    /// Locked during a read, so that there is one at a time.
    reading: tokio::sync::Mutex<()>,
    known: Known,
}

struct State {
    asked: Instant,
    view: Option<Arc<View>>,
    /// When a read was last tried.
    tried: Option<Instant>,
    /// The fault last logged.
    complaint: String,
    /// The earliest time of the next read.
    not_before: Instant,
    /// The number of a published document that a proxy has, and when it reported that.
    reported: Option<(u64, Instant)>,
    /// When a proxy last reported that it refuses its document. It may have no policies then.
    refused: Option<Instant>,
}

impl Watched {
    fn new(name: &str) -> Self {
        let now = Instant::now();
        Self {
            name: name.into(),
            version: AtomicU64::new(0),
            state: Mutex::new(State {
                asked: now,
                view: None,
                tried: None,
                complaint: String::new(),
                not_before: now,
                reported: None,
                refused: None,
            }),
            reading: tokio::sync::Mutex::default(),
            known: Known::default(),
        }
    }

    /// The reply to a proxy with this report; `None` if the domain has never been read.
    pub fn reply(&self, report: Option<&Report>) -> Option<DialsReply> {
        self.view().map(|view| view.reply(report))
    }

    /// The backend's time; `None` if the domain has never been read.
    pub fn now(&self) -> Option<Duration> {
        self.view().map(|view| view.now())
    }

    /// Reads a report and remembers its policies; `None` if it is unreadable.
    pub fn learn(&self, text: &[u8]) -> Option<Report> {
        let report = self.known.learn(text, self.now())?;
        let mut state = self.state();
        if report.live && report.number > 0 {
            state.reported = Some((report.number, Instant::now()));
        }
        if report.wrong_document.is_some() {
            state.refused = Some(Instant::now());
        }
        drop(state);
        Some(report)
    }

    /// The number of a published document that a proxy reported within the last minute.
    fn reported(&self) -> Option<u64> {
        let reported = self.state().reported.filter(|(_, at)| at.elapsed() < WANTED);
        reported.map(|(number, _)| number)
    }

    /// What rate limit services should have that follow published rules; `None` if that is not
    /// known.
    pub fn rules(&self) -> Option<PublishedRules> {
        self.view()?.rules()
    }

    /// Whether proxies reported to this store lately, be it only that they refuse their document.
    pub(crate) fn is_reported(&self) -> bool {
        let refused = self.state().refused;
        refused.is_some_and(|at| at.elapsed() < WANTED) || !self.policies().is_empty()
    }

    /// The policies that proxies reported to this store lately.
    pub fn policies(&self) -> Vec<PolicyInfo> {
        self.known.policies(self.now())
    }

    /// What is to be written, which counts as written from now on.
    pub(crate) fn due(&self) -> Vec<Field> {
        self.known.due()
    }

    /// Whether anything is to be written.
    pub fn is_due(&self) -> bool {
        self.known.is_due()
    }

    /// Forgets all reports to this store.
    pub(crate) fn forget_reports(&self) {
        self.known.forget_reports();
    }

    /// Makes everything due again soon, because it may not have been written, or was lost.
    pub(crate) fn write_again(&self) {
        self.known.write_again();
    }

    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.state().view.clone()
    }

    /// Whether proxies asked for it within the last minute.
    pub(crate) fn is_wanted(&self) -> bool {
        self.state().asked + WANTED > Instant::now()
    }

    /// The view, if it is younger than [`STALE`].
    pub(crate) fn fresh(&self) -> Option<Arc<View>> {
        self.view().filter(|view| view.at.elapsed() < STALE)
    }

    /// Whether it must be read before the store replies: it is old or has never been read, and no
    /// read has just failed.
    fn is_stale(&self) -> bool {
        let (state, now) = (self.state(), Instant::now());
        let old = state.view.as_ref().is_none_or(|view| view.at + STALE <= now);
        old && state.not_before <= now && state.tried.is_none_or(|tried| tried + EVERY <= now)
    }

    fn complain(&self, complaint: String) {
        let mut state = self.state();
        if state.complaint != complaint {
            if !complaint.is_empty() {
                tracing::warn!("domain {}: {complaint}", self.name);
            }
            state.complaint = complaint;
        }
    }

    /// No panic can happen while it is locked, so a poisoned lock guards consistent data.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Views {
    pub(crate) fn new(control: ControlHandle) -> Self {
        let (watched, recorded) = (RwLock::default(), RwLock::default());
        Self { control, watched, recorded, has_patterns: AtomicBool::new(false) }
    }

    /// Reads a domain; `last` is a previous view, unless that in memory is later.
    pub(crate) async fn view(&self, domain: &str, last: Option<&View>) -> Result<View, StoreError> {
        let cached = self.get(domain);
        let (here, reported) = match &cached {
            Some(cached) => (cached.view(), cached.reported()),
            None => (None, None),
        };
        let last =
            here.as_deref().filter(|here| last.is_none_or(|last| last.at < here.at)).or(last);
        View::read(&*self.control, domain, last, reported).await
    }

    /// The domains in memory.
    pub fn all(&self) -> Vec<Arc<Watched>> {
        self.watched.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// A domain, if it is in memory.
    pub fn get(&self, domain: &str) -> Option<Arc<Watched>> {
        self.watched.read().unwrap_or_else(PoisonError::into_inner).get(domain).cloned()
    }

    /// Learns the backend's list of domains.
    pub(crate) fn recorded(&self, list: &Snapshot) {
        let since = list.fields.iter().filter_map(|(name, value)| {
            Some((name.as_str().into(), DomainRecord::read(value)?.since_ms))
        });
        let since = since.take(MAX_NAMES).collect();
        *self.recorded.write().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Since when a domain has been in the backend's list: the end of time if it is not.
    pub(crate) fn since(&self, domain: &str) -> u64 {
        let recorded = self.recorded.read().unwrap_or_else(PoisonError::into_inner);
        recorded.get(domain).copied().unwrap_or(u64::MAX)
    }

    /// A domain, which is kept in memory from now on.
    fn want(&self, domain: &str) -> Result<Arc<Watched>, Full> {
        let now = Instant::now();
        if let Some(cached) = self.get(domain) {
            cached.state().asked = now;
            return Ok(cached);
        }
        let mut domains = self.watched.write().unwrap_or_else(PoisonError::into_inner);
        if domains.len() >= MAX_DOMAINS {
            domains.retain(|_, cached| cached.state().asked + WANTED > now);
        }
        if domains.len() >= MAX_DOMAINS {
            let latest = domains.keys().max_by_key(|name| self.since(name)).cloned();
            match latest.filter(|latest| self.since(domain) < self.since(latest)) {
                Some(latest) => drop(domains.remove(&latest)),
                None => return Err(Full),
            }
        }
        Ok(Arc::clone(
            domains.entry(domain.into()).or_insert_with(|| Arc::new(Watched::new(domain))),
        ))
    }

    /// The version of a domain that a call names; 0 if it has not been read yet. From now on the
    /// domain is read once a second, so that its overrides of parties act although proxies may
    /// fetch dials from another store.
    pub fn version(&self, domain: &str) -> u64 {
        self.want(domain).map_or(0, |cached| cached.version.load(Relaxed))
    }

    /// The quota that an override of every partition with some party sets for this counter. Runs on
    /// the path of every reservation.
    pub(crate) fn quota(&self, key: &str) -> Option<u64> {
        if !self.has_patterns.load(Relaxed) {
            return None;
        }
        let CounterKey { domain, policy, partition } = CounterKey::split(key)?;
        let view = self.get(domain)?.view()?;
        let found = view.overrides.patterns.find(policy, partition, millis(view.now()))?;
        Some(found.quota())
    }

    /// A domain that a filter asks for, at most two seconds old if the backend can be read.
    /// Requests that arrive during a read wait for its result.
    ///
    /// # Errors
    /// If filters already ask for [`MAX_DOMAINS`] others that have been known for longer.
    pub async fn wanted(&self, domain: &str) -> Result<Arc<Watched>, Full> {
        let cached = self.want(domain)?;
        if cached.is_stale() {
            let until = tokio::time::Instant::now() + PATIENCE;
            let read = timeout_at(until, async {
                let _turn = cached.reading.lock().await;
                if cached.is_stale() {
                    // If the read fails or takes too long, the last view stays.
                    let _ = timeout(TRY, self.read_into(&cached)).await;
                    cached.state().tried = Some(Instant::now());
                }
            });
            let _ = read.await;
        }
        Ok(cached)
    }

    /// Reads the domains that proxies ask for, once a second. Never returns.
    pub async fn keep_fresh(&self) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let due = |cached: &Arc<Watched>| {
                let state = cached.state();
                state.asked + WANTED > now && state.not_before <= now
            };
            let all: Vec<_> = self.all().into_iter().filter(due).collect();
            join_all(all.iter().map(|cached| async {
                let _turn = cached.reading.lock().await;
                self.read_into(cached).await;
            }))
            .await;
        }
    }

    /// Reads a domain again after a change, if it is in memory.
    pub(crate) async fn reread(&self, domain: &str) {
        if let Some(cached) = self.get(domain) {
            let _turn = cached.reading.lock().await;
            self.read_into(&cached).await;
        }
    }

    async fn read_into(&self, cached: &Watched) {
        match self.view(&cached.name, None).await {
            Ok(view) => {
                if cached.view().is_some_and(|last| !view.version().follows(&last.version())) {
                    cached.write_again();
                }
                cached.complain(view.complaint.clone());
                cached.version.store(view.version().number, Relaxed);
                let has_patterns = !view.overrides.patterns.is_empty();
                cached.state().view = Some(Arc::new(view));
                if has_patterns || self.has_patterns.load(Relaxed) {
                    let has = |view: Arc<View>| !view.overrides.patterns.is_empty();
                    let any =
                        has_patterns || self.all().iter().any(|of| of.view().is_some_and(has));
                    self.has_patterns.store(any, Relaxed);
                }
            }
            Err(StoreError::Refused(reason)) => {
                cached.complain(format!("its dials and overrides cannot be read: {reason}"));
                let mut state = cached.state();
                state.not_before = Instant::now() + REFUSED;
                // Counting goes on without dials.
                state.view.get_or_insert_with(|| Arc::new(View::none()));
            }
            // `/readyz` reports this fault.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operate;
    use crate::REMEMBERED;
    use crate::api::{ClearDial, SetDial};
    use quotagate_protocol::Mode;

    const REPORT: &[u8] =
        br#"{"policies":[{"name":"p","quota":5,"window_s":60,"stagger":false,"mode":"enforce",
        "on_failure":"allow"}]}"#;

    /// How many dials and overrides the gauges of each domain show.
    fn gauges(operate: &Operate) -> Vec<(String, usize, usize)> {
        let gauges = operate.boards.gauges().into_iter();
        gauges.map(|of| (of.domain, of.dials, of.overrides)).collect()
    }

    #[tokio::test]
    async fn unreported_domain_has_gauges_while_filters_ask_for_it() {
        let operate = Operate::new(quotagate_store::open(&"memory:".parse().unwrap(), "qg"));
        let cached = operate.views.wanted("gone").await.unwrap();
        assert_eq!(gauges(&operate), [("gone".to_owned(), 0, 0)]);
        cached.state().asked = Instant::now().checked_sub(WANTED).unwrap();
        assert_eq!(gauges(&operate), []);
        operate.views.wanted("gone").await.unwrap();
        assert_eq!(gauges(&operate).len(), 1);
    }

    #[tokio::test]
    async fn domain_that_the_backend_knows_takes_the_room_of_an_invented_one() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let before = Operate::new(Arc::clone(&store));
        for domain in ["shop", "pay"] {
            let cached = before.views.wanted(domain).await.unwrap();
            cached.learn(REPORT).unwrap();
            before.directory.write_down(&cached).await;
        }
        let fresh = Operate::new(store);
        for number in 0..MAX_DOMAINS {
            let cached = fresh.views.wanted(&format!("aa{number}")).await.unwrap();
            cached.learn(REPORT).unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            fresh.directory.write_down(&cached).await;
        }
        assert!(fresh.boards.read_quiet().await);
        let known: Vec<String> = gauges(&fresh).into_iter().map(|(name, ..)| name).collect();
        assert!(known.contains(&"shop".to_owned()) && known.contains(&"pay".to_owned()));
        for domain in ["shop", "pay"] {
            fresh.views.wanted(domain).await.unwrap();
        }
        assert_eq!(fresh.views.all().len(), MAX_DOMAINS);
        assert!(fresh.views.wanted("aa-late").await.is_err(), "nobody makes room for it");
        for domain in ["shop", "pay"] {
            assert!(fresh.views.get(domain).is_some(), "{domain}");
        }
    }

    #[tokio::test]
    async fn override_of_a_party_acts_at_a_store_that_only_gets_calls() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let (fetches, calls) = (Operate::new(Arc::clone(&store)), Operate::new(store));
        let cached = fetches.views.wanted("shop").await.unwrap();
        cached.learn(REPORT).unwrap();
        fetches.directory.write_down(&cached).await;
        let blocked = crate::api::SetOverride {
            domain: Some("shop".to_owned()),
            policy: "*".to_owned(),
            partition: "jwt.sub=x".to_owned(),
            allow: crate::api::Allow::Blocked,
            for_ms: None,
            by: "ben".to_owned(),
        };
        fetches.overrides.set(&blocked).await.unwrap();
        let key = "shop:p:{jwt.sub=x}";
        let reading = async { calls.views.keep_fresh().await };
        let asking = async {
            while calls.views.quota(key) != Some(0) {
                calls.views.version("shop");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            () = reading => {}
            asked = timeout(Duration::from_secs(30), asking) => asked.unwrap(),
        }
    }

    #[tokio::test]
    async fn gauges_outlive_traffic_and_a_restart_of_the_store() {
        let store = quotagate_store::open(&"memory:".parse().unwrap(), "qg");
        let operate = Operate::new(Arc::clone(&store));
        let cached = operate.views.wanted("shop").await.unwrap();
        cached.learn(REPORT).unwrap();
        operate.directory.write_down(&cached).await;
        let dial = SetDial {
            domain: None,
            policy: "p".to_owned(),
            mode: None,
            include_shadow: false,
            enforced_for: None,
            quota: Some(7),
            on_failure: None,
            for_ms: None,
            by: "ann".to_owned(),
        };
        operate.dials.set(&dial).await.unwrap();
        cached.state().asked = Instant::now().checked_sub(WANTED).unwrap();
        assert!(operate.boards.read_quiet().await);
        assert_eq!(gauges(&operate), [("shop".to_owned(), 1, 0)]);
        let started_anew = Operate::new(store);
        assert!(started_anew.boards.read_quiet().await);
        assert_eq!(gauges(&started_anew), [("shop".to_owned(), 1, 0)], "no filter asked this one");
        let clear = ClearDial { domain: None, policy: "p".to_owned(), by: "ann".to_owned() };
        operate.dials.clear(&clear).await.unwrap();
        assert!(started_anew.boards.read_quiet().await);
        assert_eq!(gauges(&started_anew), [("shop".to_owned(), 0, 0)]);
    }

    #[tokio::test]
    async fn gauges_show_the_mode_in_force_and_what_was_left_on() {
        let operate = Operate::new(quotagate_store::open(&"memory:".parse().unwrap(), "qg"));
        let cached = operate.views.wanted("shop").await.unwrap();
        let policy = |name: &str, partition_by: &str| {
            format!(
                r#"{{"name":"{name}","quota":5,"window_s":60,"stagger":false,"mode":"enforce",
                "on_failure":"allow","partition_by":{partition_by}}}"#
            )
        };
        let by_caller = r#"[{"name":"caller","forms":["jwt.sub"]}]"#;
        let policies = [policy("all", "[]"), policy("one", by_caller), policy("part", by_caller)];
        let report = format!(r#"{{"policies":[{}]}}"#, policies.join(","));
        cached.learn(report.as_bytes()).unwrap();
        operate.directory.write_down(&cached).await;
        let dial = |policy: &str, mode, enforced_for| SetDial {
            domain: None,
            policy: policy.to_owned(),
            mode,
            include_shadow: false,
            enforced_for,
            quota: None,
            on_failure: None,
            for_ms: None,
            by: "ann".to_owned(),
        };
        operate.dials.set(&dial("*", Some(Mode::Shadow), None)).await.unwrap();
        operate.dials.set(&dial("one", Some(Mode::Mark), None)).await.unwrap();
        let share = serde_json::from_value(serde_json::json!({"percent": 5})).unwrap();
        operate.dials.set(&dial("part", None, Some(share))).await.unwrap();
        tokio::time::sleep(Duration::from_millis(2)).await;
        assert!(operate.boards.read_quiet().await);
        let gauges = operate.boards.gauges().remove(0);
        let shown: Vec<_> = gauges
            .policies
            .iter()
            .map(|of| (of.name.as_str(), of.mode, of.counts_everybody))
            .collect();
        let expected = [
            ("all", Mode::Shadow, true),
            ("one", Mode::Mark, false),
            ("part", Mode::Enforce, false),
        ];
        assert_eq!(shown, expected);
        assert!(gauges.longest_dial > Duration::ZERO, "{gauges:?}");
        assert_eq!(gauges.longest_override, Duration::ZERO);
        assert!(gauges.silent.is_some_and(|silent| silent < REMEMBERED), "{gauges:?}");
    }

    #[tokio::test]
    async fn gauges_show_a_policy_as_enforced_while_any_document_enforces_it() {
        let operate = Operate::new(quotagate_store::open(&"memory:".parse().unwrap(), "qg"));
        let cached = operate.views.wanted("shop").await.unwrap();
        // The later report counts everybody and enforces nothing.
        for (digest, mode, partition_by) in [
            ("0123456789ab", "enforce", r#"[{"name":"caller","forms":["jwt.sub"]}]"#),
            ("ba9876543210", "shadow", "[]"),
        ] {
            let report = format!(
                r#"{{"digest":"{digest}","policies":[{{"name":"p","quota":5,"window_s":60,
                "stagger":false,"mode":"{mode}","on_failure":"allow","partition_by":{partition_by}}}]}}"#
            );
            cached.learn(report.as_bytes()).unwrap();
            operate.directory.write_down(&cached).await;
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        assert!(operate.boards.read_quiet().await);
        let gauges = operate.boards.gauges().remove(0);
        let shown: Vec<_> =
            gauges.policies.iter().map(|of| (&*of.name, of.mode, of.counts_everybody)).collect();
        assert_eq!(shown, [("p", Mode::Enforce, true)]);
    }
}
