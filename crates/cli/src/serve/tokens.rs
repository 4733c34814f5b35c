//! Reads token files again, so that tokens can be rotated without a restart.

use std::time::Duration;

use quotagate_store::server::Tokens;
use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// How often the files are read. They are small, so they are compared by content.
const EVERY: Duration = Duration::from_secs(1);

/// Reads the files of `tokens` every second, and at once on `hangup` (SIGHUP). Never returns.
///
/// Passwords of Redis are not among them: the store reads those for each connection.
pub async fn keep_read(tokens: Vec<Tokens>, mut hangup: Signal) {
    loop {
        tokio::select! {
            Some(()) = hangup.recv() => tracing::info!(
                "SIGHUP: reading token files again; password and certificate files are read for each connection"
            ),
            () = sleep(EVERY) => {}
        }
        let tokens = tokens.clone();
        // A disk that hangs does not delay calls. After a panic the tokens stay as they are.
        let _ = spawn_blocking(move || tokens.iter().for_each(Tokens::read_again)).await;
    }
}
