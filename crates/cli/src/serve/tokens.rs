//! Token files are read again, so that tokens are exchanged without a restart.

use std::time::Duration;

use quotagate_store::server::Tokens;
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// How often a file is looked at. It is small, so it is compared by its content.
const EVERY: Duration = Duration::from_secs(2);

/// Reads the files of `tokens` again every two seconds, and at once on `hangup` (SIGHUP). Never returns.
///
/// The password of Redis needs no such care: it is read for each connection.
pub async fn keep_read(tokens: Vec<Tokens>, mut hangup: Signal) {
    loop {
        tokio::select! {
            Some(()) = hangup.recv() => tracing::info!("SIGHUP: reading token files again; files of passwords and certificates are read for each connection"),
            () = sleep(EVERY) => {}
        }
        let tokens = tokens.clone();
        // A disk that hangs holds up no call, and a panic there leaves the tokens as they are.
        let _ = spawn_blocking(move || tokens.iter().for_each(Tokens::read_again)).await;
    }
}
