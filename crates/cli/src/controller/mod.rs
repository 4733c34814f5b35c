//! `quotagate controller`: from QuotaPolicies of a cluster to published documents, and back to
//! their status.
//!
//! One controller of several acts, the one that holds a Lease. It keeps the objects of the cluster
//! in memory by watches. After a change, and every few seconds, it makes a [pass]: the objects are
//! merged anew, documents that differ are published, and statuses that differ are written. So
//! nothing that was missed stays missed, and a fault of one object or of one domain stops no other.

mod cluster;
mod documents;
#[cfg(test)]
mod fake_api;
mod leadership;
mod lineage;
mod merged;
mod metrics;
mod object_events;
mod pass;
mod patience;
mod publishing;
mod retry;
mod server;
mod statuses;
mod watched;
mod watched_kinds;

use std::collections::BTreeSet;
use std::env;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use quotagate_kubernetes::{Domains, Objects, merge};
use quotagate_ratelimit::settings::LogFormat;
use quotagate_store::server::ListenAddr;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::Level;

use self::documents::{DocumentStore, DocumentWish};
use self::leadership::Leadership;
use self::metrics::ControllerMetrics;
use self::pass::Reconciler;
use self::patience::Patience;
use self::publishing::StoreContact;
use self::watched::Watched;
use crate::merge::{domains, objects, print_documents, refusals, unplaced};
use crate::operate::{AdminAddr, Token, user_at_host};
use crate::serve::write_log;

/// How long to wait for further changes, so that a burst makes one pass.
const BURST: Duration = Duration::from_millis(200);
/// The longest wait for them.
const LONGEST_BURST: Duration = Duration::from_secs(2);
/// How often to look at the store when nothing changes.
const LOOK: Duration = Duration::from_secs(5);
/// How long a controller that acts once waits for the objects, and for the Lease.
const WAIT: Duration = Duration::from_secs(30);

/// The flags of `quotagate controller`.
#[derive(clap::Args)]
pub(crate) struct ControllerArgs {
    /// The domains of the platform: a list `domains` of policy documents, each with its `gateways`
    /// [default: one domain `default` for all Gateways, without identities of the platform]
    #[arg(long, env = "QUOTAGATE_CONTROLLER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The admin address of the store that documents are published through: host:port,
    /// http://host:port or unix:/path.sock
    #[arg(long, env = "QUOTAGATE_ADMIN", default_value = "127.0.0.1:9181", value_name = "ADDR")]
    admin: AdminAddr,
    /// A file with a token of the role `publish` for the domains, read for each call [default:
    /// QUOTAGATE_TOKEN, then the file named by QUOTAGATE_ADMIN_TOKEN_FILE or QUOTAGATE_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The namespace of the Lease: of several controllers, the one that holds it acts [default:
    /// that of the pod, or of the kubeconfig]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    lease_namespace: Option<String>,
    /// The name of the Lease
    #[arg(
        long,
        env = "QUOTAGATE_LEASE",
        default_value = "quotagate-controller",
        value_name = "NAME"
    )]
    lease: String,
    /// The address of /metrics, /healthz and /readyz
    #[arg(long, env = "QUOTAGATE_METRICS", default_value = "127.0.0.1:9182", value_name = "ADDR")]
    metrics: ListenAddr,
    /// Print the documents and what is wrong with objects, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Publish and write the status once, and end
    #[arg(long)]
    once: bool,
    /// With --once or --dry-run: read the objects from this folder, as `quotagate merge` does, and
    /// use no cluster
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    /// The log level on standard error: error, warn, info, debug, trace
    #[arg(long, env = "QUOTAGATE_LOG", default_value = "info", value_name = "LEVEL")]
    log: Level,
}

/// Runs the controller until SIGTERM or SIGINT.
///
/// # Errors
/// One sentence about a wrong flag, a wrong configuration, or a cluster that cannot be reached.
pub(crate) fn run(args: &ControllerArgs) -> Result<ExitCode, String> {
    if args.from.is_some() && !args.once && !args.dry_run {
        return Err("--from needs --once or --dry-run: nobody watches a folder".to_owned());
    }
    let domains = domains(args.config.as_deref(), None)?;
    write_log(args.log, LogFormat::Text);
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let done = runtime.block_on(async {
        match &args.from {
            Some(folder) => of_folder(args, &domains, folder).await,
            None => of_cluster(args, domains).await,
        }
    });
    // A name lookup that hangs must not delay the end.
    runtime.shutdown_background();
    done
}

impl ControllerArgs {
    fn store(&self, of: &str) -> Result<DocumentStore, String> {
        // A token that is missing now is a fault of the call.
        Token::find(self.token_file.as_deref()).map_err(|failure| failure.to_string())?;
        Ok(DocumentStore::new(self.admin.clone(), self.token_file.clone(), user_at_host(), of))
    }
}

/// Publishes what the objects of a folder make, or prints it.
async fn of_folder(
    args: &ControllerArgs,
    domains: &Domains,
    folder: &Path,
) -> Result<ExitCode, String> {
    let (objects, faults) = objects(folder)?;
    if args.dry_run {
        return print_documents(&objects, domains, None, faults);
    }
    // A document without some of the objects would withdraw what others have published.
    if !faults.is_empty() {
        let faults = Vec::from_iter(faults).join("\n");
        return Err(format!("nothing is published, because objects cannot be read:\n{faults}"));
    }
    if objects.names().next().is_none() {
        return Err(format!(
            "nothing is published, because {} holds no QuotaPolicy",
            folder.display()
        ));
    }
    // What an incomplete export looks like.
    let lacks = domains.iter().filter_map(|domain| domain.lacks(&objects));
    let lacks: BTreeSet<String> = lacks.chain(objects.absent_kinds()).collect();
    if !lacks.is_empty() {
        return Err(format!(
            "nothing is published, because the folder is not complete:\n{}",
            Vec::from_iter(lacks).join("\n")
        ));
    }
    let mut store = args.store("a folder")?;
    let (mut is_whole, mut placed, mut refused) = (true, BTreeSet::new(), BTreeSet::new());
    for domain in domains.iter() {
        let merged = merge(&objects, domain);
        placed.extend(merged.outcomes.iter().map(|outcome| outcome.object.clone()));
        refused.extend(merged.outcomes.iter().flat_map(refusals));
        let wish = DocumentWish::of(&merged);
        if matches!(wish, DocumentWish::Nothing) {
            tracing::info!(
                "the folder has no policies for domain {}: what is published stays. To withdraw \
                 it, run `quotagate document withdraw`",
                domain.name()
            );
            continue;
        }
        let settled = store.settle(domain, &wish).await;
        is_whole &= settled.end.is_good();
        settled.end.say(&mut None);
    }
    refused.extend(unplaced(&objects, &placed));
    refused.iter().for_each(|refusal| tracing::warn!("{refusal}"));
    is_whole &= refused.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn of_cluster(args: &ControllerArgs, domains: Domains) -> Result<ExitCode, String> {
    let cluster = cluster::client().await;
    let cluster =
        cluster.map_err(|error| format!("no Kubernetes cluster is configured: {error}"))?;
    let mut stop = until_signal()?;
    let metrics = Arc::new(ControllerMetrics::new());
    let watched = Watched::start(cluster.clone(), Arc::clone(&metrics));
    let ends = args.once || args.dry_run;
    if !ends {
        server::serve(&args.metrics, Arc::clone(&metrics), Arc::clone(&watched)).await?;
    }
    tokio::select! {
        () = &mut stop => {
            return if ends { Err("stopped before it was done".to_owned()) } else { Ok(ExitCode::SUCCESS) };
        }
        () = watched.ready() => {}
        () = sleep(WAIT), if ends => return Err(unreadable(&watched)),
    }
    if args.dry_run {
        let (mut objects, mut faults) = (Objects::default(), BTreeSet::new());
        for (_, _, object) in watched.all() {
            faults.extend(objects.add(&object).err().into_iter().flatten());
        }
        return print_documents(&objects, &domains, None, faults);
    }
    let name = env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    // Two hosts may have one name.
    let random = RandomState::new().build_hasher().finish();
    let name = format!("{}-{random:016x}", name.unwrap_or_else(|| "controller".to_owned()));
    let store = args.store(&watched.cluster())?;
    let namespace =
        args.lease_namespace.clone().unwrap_or_else(|| cluster.default_namespace().to_owned());
    let reconciler =
        Reconciler::new(&cluster, domains, watched, store, Arc::clone(&metrics), name.clone());
    let (ended, ends) = oneshot::channel();
    let (leadership, candidate) =
        Leadership::start(cluster, &namespace, args.lease.clone(), name, ends);
    let done = match args.once {
        true => tokio::select! {
            () = &mut stop => Err("stopped before it was done".to_owned()),
            done = once(reconciler, leadership, &namespace, &args.lease) => done,
        },
        false => {
            lead(reconciler, leadership, stop, &metrics).await;
            Ok(ExitCode::SUCCESS)
        }
    };
    drop(ended);
    // What is left of the Lease expires if the task failed.
    let _ = candidate.await;
    done
}

fn unreadable(watched: &Watched) -> String {
    format!(
        "these objects of the cluster cannot be read: {}. The controller needs the definitions of \
         the Gateway API and of QuotaPolicy, and the verbs get, list and watch",
        watched.unknown().join("; ")
    )
}

/// Makes one pass, once it leads.
async fn once(
    mut reconciler: Reconciler,
    mut leadership: Leadership,
    namespace: &str,
    lease: &str,
) -> Result<ExitCode, String> {
    let gained = async {
        while !leadership.acts() {
            leadership.changed().await;
        }
    };
    if timeout(WAIT, gained).await.is_err() {
        return Err(format!(
            "did not get the Lease {lease} in the namespace {namespace}. The log says why, or \
             another controller holds it, and publishes what this one would: stop it first"
        ));
    }
    // It may have waited long.
    let watched = Arc::clone(&reconciler.watched);
    watched.relist();
    if timeout(WAIT, watched.ready()).await.is_err() {
        return Err(unreadable(&watched));
    }
    let seen = *watched.changes().borrow();
    let end = reconciler.pass(seen, &leadership).await;
    // Each answer has a limit, and events are no reason to wait longer.
    let _ = timeout(WAIT, reconciler.finish()).await;
    let refusals = reconciler.refusals();
    refusals.iter().for_each(|refusal| tracing::warn!("{refusal}"));
    let is_whole = end.is_whole && refusals.is_empty();
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes passes while it leads.
async fn lead(
    mut reconciler: Reconciler,
    mut leadership: Leadership,
    mut stop: Stop,
    metrics: &ControllerMetrics,
) {
    let watched = Arc::clone(&reconciler.watched);
    let mut changes = watched.changes();
    let (mut was_leader, mut next, mut patience) = (false, Instant::now(), Patience::new());
    loop {
        let is_leader = leadership.acts();
        metrics.leader.set(i64::from(is_leader));
        if is_leader != was_leader {
            was_leader = is_leader;
            if is_leader {
                tracing::info!("leads");
                patience.leads();
                reconciler.begin();
                watched.relist();
            } else {
                tracing::info!("does not lead any more");
                metrics.stands_by();
            }
        }
        tokio::select! {
            () = &mut stop => return,
            () = leadership.changed() => {}
            // The sender lives as long as `watched`.
            _ = changes.changed() => {
                burst(&mut changes).await;
                next = Instant::now();
            }
            () = sleep_until(next), if is_leader => {
                next = Instant::now() + LOOK;
                if !leadership.acts() {
                    continue;
                }
                if !watched.is_ready() {
                    leave_if_over(&mut patience, &leadership, "it cannot read the cluster");
                    continue;
                }
                let seen = *changes.borrow_and_update();
                let end = tokio::select! {
                    () = &mut stop => return,
                    end = reconciler.pass(seen, &leadership) => end,
                };
                next = end.due.min(Instant::now() + LOOK);
                match end.contact {
                    StoreContact::Answered => patience.works(),
                    StoreContact::Unreachable => {
                        leave_if_over(&mut patience, &leadership, "the store does not answer");
                    }
                    StoreContact::NoToken => {
                        leave_if_over(&mut patience, &leadership, "the token of the store cannot be read");
                    }
                    StoreContact::None => {}
                }
            }
        }
    }
}

/// Lets another controller lead, if this one has not done its work for too long.
fn leave_if_over(patience: &mut Patience, leadership: &Leadership, why: &str) {
    if patience.ends() {
        tracing::warn!("{why}, so another controller may lead");
        leadership.leave();
    }
}

/// Waits until a burst of changes is over.
async fn burst(changes: &mut watch::Receiver<u64>) {
    let end = Instant::now() + LONGEST_BURST;
    while Instant::now() < end && timeout(BURST, changes.changed()).await.is_ok_and(|it| it.is_ok())
    {
    }
}

/// Ends with the first signal to end.
type Stop = Pin<Box<dyn Future<Output = ()>>>;

fn until_signal() -> Result<Stop, String> {
    let on = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
    let (mut terminate, mut interrupt) =
        (on(SignalKind::terminate())?, on(SignalKind::interrupt())?);
    Ok(Box::pin(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }))
}
