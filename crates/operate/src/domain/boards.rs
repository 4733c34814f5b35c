//! The state of domains at one moment.
//!
//! The last read of up to [`MAX_DOMAINS`] domains is kept, so that their overrides are read again
//! only with a new version.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::directory::{Directory, DomainNames, Written, merged};
use super::view::{Index, Losses, View};
use super::views::Views;
use crate::api::{Board, PolicyInfo};
use crate::record::documents::NamedDocuments;
use crate::{Fault, MAX_DOMAINS, MAX_POLICIES};
use quotagate_protocol::Mode;
use quotagate_store::control::{HashName, Snapshot};
use quotagate_store::store::StoreError;

/// How long a glance waits for the names, and then again for all domains together.
const GLANCE: Duration = Duration::from_millis(500);
/// How old the policies of a glance may be if the version is unchanged.
const POLICIES: Duration = Duration::from_secs(10);

/// A view that is older says nothing of the document that is published now.
const STALE: Duration = Duration::from_secs(30);

/// How often domains without traffic are read, for the gauges of `/metrics`, and how soon after a
/// failure.
const QUIET: Duration = Duration::from_secs(10);
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The state of domains at one moment.
pub struct Boards {
    pub(crate) directory: Arc<Directory>,
    pub(crate) views: Arc<Views>,
    kept: Kept,
}

/// What the gauges of a domain show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainGauges {
    /// Its name.
    pub domain: String,
    /// The dials in force.
    pub dials: usize,
    /// The overrides in force.
    pub overrides: usize,
    /// For how long the oldest dial has been in force; zero if there is none.
    pub longest_dial: Duration,
    /// For how long the oldest override without an end has been in force; zero if there is none.
    pub longest_override: Duration,
    /// How long ago a proxy reported; absent if none is known to have done so. Reports to other
    /// stores are known up to ten minutes late.
    pub silent: Option<Duration>,
    /// Which documents proxies should have, and for how long this store has known that; absent if
    /// it does not know it, or has not read the domain for half a minute.
    pub documents: Option<(NamedDocuments, Duration)>,
    /// Whether proxies have a published document that the backend has no record of any more.
    pub lost_document: bool,
    /// Whether the backend lost dials or overrides within the last hour.
    pub lost_changes: bool,
    /// Its policies: [`MAX_POLICIES`] over all domains.
    pub policies: Vec<PolicyGauge>,
}

/// What the gauge of a policy shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyGauge {
    /// Its name.
    pub name: String,
    /// The mode that is in force.
    pub mode: Mode,
    /// Whether one counter counts everybody.
    pub counts_everybody: bool,
}

/// The last read, by domain.
#[derive(Default)]
struct Kept(Mutex<HashMap<String, Arc<Read>>>);

/// A domain as read.
struct Read {
    view: Arc<View>,
    written: Written,
    written_at: Instant,
}

/// What decides about the counters of a domain.
pub(crate) struct DomainState {
    /// Its policies, by name.
    pub policies: Vec<PolicyInfo>,
    /// Its dials.
    pub dials: Snapshot,
    /// The index of its overrides; empty if it cannot be read.
    pub overrides: Snapshot,
    /// Those of every partition that contains a party.
    pub patterns: Arc<Index>,
    /// Why dials or overrides may be old, or missing.
    pub incomplete: Option<String>,
}

/// How exact a board must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BoardLook {
    /// Everything is read again.
    Close,
    /// Policies may be [`POLICIES`] old, and a fresh view in [`Views`] is used as it is.
    Glance,
}

impl Kept {
    fn get(&self, domain: &str) -> Option<Arc<Read>> {
        self.lock().get(domain).cloned()
    }

    fn keep(&self, domain: &str, read: &Arc<Read>) {
        let mut kept = self.lock();
        if kept.len() < MAX_DOMAINS || kept.contains_key(domain) {
            kept.insert(domain.to_owned(), Arc::clone(read));
        }
    }

    /// Drops all domains but these, and those that the backend lost something of: its list of
    /// domains may be lost, too.
    fn retain(&self, names: &[String]) {
        let is_lost = |losses: &Losses| losses.document.is_some() || losses.has_changes();
        self.lock().retain(|domain, read| names.contains(domain) || is_lost(read.view.losses()));
    }

    /// No panic can happen while it is locked, so a poisoned lock guards consistent data.
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Read>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Boards {
    pub(crate) fn new(directory: Arc<Directory>, views: Arc<Views>) -> Self {
        Self { directory, views, kept: Kept::default() }
    }

    /// What decides about the counters of a domain. Dials and overrides are as last read while only
    /// the part of the backend is away that has them.
    ///
    /// # Errors
    /// If the backend fails.
    pub(crate) async fn state(&self, domain: &str) -> Result<DomainState, Fault> {
        let control = &self.directory.control;
        let (dials, overrides, policies) = tokio::join!(
            control.read(HashName::Dials, domain),
            control.read(HashName::Overrides, domain),
            self.directory.policies(domain),
        );
        let policies = policies?;
        match dials.and_then(|dials| Ok((dials, overrides?))) {
            Ok((dials, overrides)) => {
                let patterns = Arc::new(Index::of(dials.version, &overrides));
                Ok(DomainState { policies, dials, overrides, patterns, incomplete: None })
            }
            Err(error) if control.is_partial(&error) => {
                let last = self.last_views().remove(domain);
                let shown = match last {
                    Some(_) => {
                        "dials and overrides of parties are as last read, and others are not listed"
                    }
                    None => "dials and overrides are not shown",
                };
                let incomplete = Some(format!("{shown} for {domain}: {error}"));
                let last = last.unwrap_or_else(|| Arc::new(View::none()));
                let (dials, patterns) = (last.snapshot(), Arc::clone(&last.overrides));
                let overrides = Snapshot { now: dials.now, ..Snapshot::default() };
                Ok(DomainState { policies, dials, overrides, patterns, incomplete })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The board of a domain, or of all. A domain that cannot be read appears as last read, and
    /// says so.
    ///
    /// # Errors
    /// If the domain is not known, or the backend fails for all of them.
    pub async fn read_all(&self, domain: Option<&str>) -> Result<Vec<Board>, Fault> {
        self.read_of(self.directory.some_or_all(domain).await?).await
    }

    /// The same of these domains.
    ///
    /// # Errors
    /// If the backend fails for all of them, or if none is known and some may be missing.
    pub async fn read_of(&self, domains: DomainNames) -> Result<Vec<Board>, Fault> {
        let DomainNames { names, incomplete } = domains;
        let (mut boards, mut failed) = (Vec::new(), None);
        let reads = join_all(names.iter().map(|domain| self.read(domain, BoardLook::Close))).await;
        for (domain, read) in names.iter().zip(reads) {
            let board = match read {
                Ok(read) => self.board(domain, &read),
                Err(error) => {
                    tracing::warn!("no board of {domain}: {error}");
                    let why = format!("{domain} cannot be read: {error}");
                    let partial = self.directory.control.is_partial(&error);
                    failed = Some(error);
                    if !partial {
                        continue;
                    }
                    self.last_board(domain, why)
                }
            };
            let incomplete = board.incomplete.or_else(|| incomplete.clone());
            boards.push(Board { incomplete, ..board });
        }
        match (failed, incomplete) {
            (Some(error), _) if boards.is_empty() => Err(error.into()),
            (None, Some(why)) if boards.is_empty() => Err(StoreError::Unreachable(why).into()),
            _ => Ok(boards),
        }
    }

    /// The board of a domain as last read, and why it is not read now.
    fn last_board(&self, domain: &str, why: String) -> Board {
        let view = self.last_views().remove(domain);
        let written = self.kept.get(domain).map(|read| Arc::clone(&read.written));
        let view = view.unwrap_or_else(|| Arc::new(View::none()));
        let written = written.unwrap_or_default();
        let read = Read { view, written, written_at: Instant::now() };
        Board { incomplete: Some(why), ..self.board(domain, &read) }
    }

    /// All boards, within a second. A domain that cannot be read in time appears as last read.
    /// `last` are the domains of the previous glance.
    pub async fn glance(&self, last: &mut Vec<String>) -> Vec<Board> {
        if let Ok(Ok(names)) = timeout(GLANCE, self.directory.domains()).await {
            self.kept.retain(&names);
            *last = names;
        }
        let reads = last.iter().map(|domain| async move {
            let read = match timeout(GLANCE, self.read(domain, BoardLook::Glance)).await {
                Ok(Ok(read)) => Some(read),
                _ => self.kept.get(domain),
            };
            Some(self.board(domain, &*read?))
        });
        join_all(reads).await.into_iter().flatten().collect()
    }

    /// Reads every reported domain every [`QUIET`], so that its dials stay in the metrics without
    /// traffic. Never returns.
    pub(crate) async fn keep_quiet(&self) {
        loop {
            let whole = self.read_quiet().await;
            sleep(if whole { QUIET } else { AFTER_FAILURE }).await;
        }
    }

    /// Reads the domains that filters have reported, at most [`MAX_DOMAINS`]: those that have been
    /// known for longest. Returns whether all could be read.
    pub(crate) async fn read_quiet(&self) -> bool {
        let names = timeout(GLANCE, self.directory.domains()).await;
        let Ok(Ok(mut names)) = names else { return false };
        names.sort_by_key(|name| self.views.since(name));
        names.truncate(MAX_DOMAINS);
        let kept: Vec<String> = self.kept.lock().keys().cloned().collect();
        let unlisted = kept.into_iter().filter(|domain| !names.contains(domain));
        let all: Vec<String> = names.iter().cloned().chain(unlisted).collect();
        let mut whole = true;
        for domain in all.iter().take(MAX_DOMAINS) {
            whole &=
                matches!(timeout(GLANCE, self.read(domain, BoardLook::Glance)).await, Ok(Ok(_)));
        }
        self.kept.retain(&names);
        whole
    }

    /// Losses of the backend by domain, in sentences for operators.
    pub fn losses(&self) -> BTreeMap<String, Vec<String>> {
        let views = self.last_views().into_iter();
        let losses = views.map(|(domain, view)| {
            let sentences = view.losses().sentences(&domain);
            (domain, sentences)
        });
        losses.filter(|(_, sentences)| !sentences.is_empty()).collect()
    }

    /// Drops the last read of a domain.
    pub(crate) fn forget(&self, domain: &str) {
        self.kept.lock().remove(domain);
    }

    /// What the gauges show, for each domain that filters have reported or ask for.
    pub fn gauges(&self) -> Vec<DomainGauges> {
        let mut room = MAX_POLICIES;
        let gauges = self.last_views().into_iter().map(|(domain, view)| {
            let (now, kept) = (view.now(), self.kept.get(&domain));
            let written = kept.as_ref().map_or(&[][..], |read| &read.written);
            let policies = merged(written, self.views.get(&domain).as_deref());
            let last = policies.iter().map(|policy| policy.seen_ms).max();
            let shown = policies.iter().take(room).map(|policy| {
                // While documents differ, one that enforces must not be overlooked.
                let enforces = policy.forms().any(|form| form.mode == Mode::Enforce);
                let configured = if enforces { Mode::Enforce } else { policy.mode };
                let mut keys = policy.forms().filter_map(|form| form.partition_by.as_ref());
                PolicyGauge {
                    mode: view.mode_at(&policy.name, configured, now),
                    counts_everybody: keys.any(Vec::is_empty),
                    name: policy.name.clone(),
                }
            });
            let policies: Vec<_> = shown.collect();
            room = room.saturating_sub(policies.len());
            DomainGauges {
                dials: view.dials_at(now),
                overrides: view.overrides.count_at(now),
                longest_dial: view.longest_dial_at(now),
                longest_override: view.overrides.longest_at(now),
                documents: view.documents().filter(|_| view.at.elapsed() < STALE),
                lost_document: view.losses().document.is_some(),
                lost_changes: view.losses().has_changes(),
                silent: last.map(|at_ms| now.saturating_sub(Duration::from_millis(at_ms))),
                policies,
                domain,
            }
        });
        gauges.collect()
    }

    /// The last view of each domain that filters have reported or ask for.
    pub(crate) fn last_views(&self) -> BTreeMap<String, Arc<View>> {
        let kept = self.kept.lock();
        let mut views: BTreeMap<_, _> =
            kept.iter().map(|(domain, read)| (domain.clone(), Arc::clone(&read.view))).collect();
        drop(kept);
        for cached in self.views.all() {
            let Some(view) = cached.view() else { continue };
            match views.get_mut(&*cached.name) {
                Some(last) if last.at >= view.at => {}
                Some(last) => *last = view,
                None if cached.is_wanted() => drop(views.insert(cached.name.to_string(), view)),
                None => {}
            }
        }
        views
    }

    async fn read(&self, domain: &str, look: BoardLook) -> Result<Arc<Read>, StoreError> {
        let last = self.kept.get(domain);
        let at_hand = || self.views.get(domain).and_then(|cached| cached.fresh());
        let view = match at_hand().filter(|_| look == BoardLook::Glance) {
            Some(view) => view,
            None => Arc::new(self.views.view(domain, last.as_ref().map(|last| &*last.view)).await?),
        };
        let same = |last: &&Arc<Read>| {
            look == BoardLook::Glance
                && last.view.version() == view.version()
                && last.written_at.elapsed() < POLICIES
        };
        let (written, written_at) = match last.as_ref().filter(same) {
            Some(last) => (Arc::clone(&last.written), last.written_at),
            None => (self.directory.written(domain).await?, Instant::now()),
        };
        // What proxies ask for is read, and logged, once a second.
        let known = last.as_ref().map(|last| last.view.losses().sentences(domain));
        let losses = view.losses().sentences(domain);
        if known.is_some_and(|known| known != losses) && at_hand().is_none() {
            losses.iter().for_each(|loss| tracing::warn!("{loss}"));
        }
        let read = Arc::new(Read { view, written, written_at });
        self.kept.keep(domain, &read);
        Ok(read)
    }

    fn board(&self, domain: &str, read: &Read) -> Board {
        let Read { view, written, .. } = read;
        let now = view.now();
        let dials =
            view.dials().iter().filter_map(|(policy, dial)| dial.entry(policy, now)).collect();
        Board {
            domain: domain.to_owned(),
            version: view.version().number,
            durable: self.directory.control.durable(),
            policies: merged(written, self.views.get(domain).as_deref()),
            dials,
            overrides: u64::try_from(view.overrides.count_at(now)).unwrap_or(u64::MAX),
            incomplete: None,
        }
    }
}
