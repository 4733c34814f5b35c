//! Runs the full-screen view on the terminal.

use std::future::pending;
use std::io;
use std::pin::Pin;

use quotagate_operate::api::Top;
use ratatui::crossterm::event::{self, Event};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::sleep;

use super::rows::PartitionName;
use super::view::{Pressed, TopView};
use super::{TopArgs, ask};
use crate::operate::client::Answer;
use crate::operate::failure::Failure;
use crate::operate::look::{usage, why};
use crate::operate::session::Session;
use crate::text::duration;

/// A question to the store that is under way.
type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 'a>>;

/// Gives the terminal back, however the view ends.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Draws until a key or a signal ends it.
///
/// # Errors
/// When the store refuses, does not answer at first, or the terminal cannot be used.
pub(super) async fn run(args: &TopArgs, session: &Session) -> Result<(), Failure> {
    let every = u64::try_from(args.interval.as_millis()).unwrap_or(u64::MAX);
    let mut view = TopView::new(
        session.client.address.to_string(),
        duration(every),
        session.output.colour,
        args.sort,
        args.filter.as_ref().map(ToString::to_string).unwrap_or_default(),
    );
    // A failure of the first question is printed as by every command.
    view.show(ask(args, session).await?.value);
    let mut terminated = signal(SignalKind::terminate()).map_err(unusable)?;
    let mut terminal = ratatui::try_init().map_err(unusable)?;
    let restored = Restored;
    let mut keys = keys();
    let mut asking: Asking<'_, Answer<Top>> = Box::pin(later(args, session));
    let mut opening: Option<Asking<'_, Vec<String>>> = None;
    loop {
        terminal.draw(|frame| view.draw(frame)).map_err(unusable)?;
        let opened = async {
            match opening.as_mut() {
                Some(opening) => opening.await,
                None => pending().await,
            }
        };
        tokio::select! {
            answer = &mut asking => {
                match answer {
                    Ok(answer) => view.show(answer.value),
                    // While a store restarts, the last rows stay on the screen.
                    Err(Failure::Unreachable(why)) => view.keep(&why),
                    Err(failure) => return Err(failure),
                }
                asking = Box::pin(later(args, session));
            }
            lines = opened => {
                opening = None;
                match lines {
                    Ok(lines) => view.open(lines),
                    Err(failure) => view.open(failure.to_string().lines().map(str::to_owned).collect()),
                }
            }
            event = keys.recv() => match event {
                Some(Event::Key(key)) => match view.press(key) {
                    Pressed::Draw => {}
                    Pressed::Leave => break,
                    Pressed::Open(name) => opening = Some(Box::pin(explain(session, name))),
                },
                // Another event, such as a new size, only draws again.
                Some(_) => {}
                None => break,
            },
            _ = terminated.recv() => break,
        }
    }
    drop(restored);
    Ok(())
}

async fn later(args: &TopArgs, session: &Session) -> Result<Answer<Top>, Failure> {
    sleep(args.interval).await;
    ask(args, session).await
}

/// What `quotagate why` says of the partition.
async fn explain(
    session: &Session,
    (_, policy, partition): PartitionName,
) -> Result<Vec<String>, Failure> {
    let answer = usage::ask(session, &partition, false).await?;
    let incomplete = answer.value.incomplete.as_deref();
    let mut lines = why::lines(&answer.value, session);
    if lines.is_empty() {
        let of = if incomplete.is_some() { " of those that were found" } else { "" };
        lines.push(format!("No policy{of} refuses {partition} now."));
        lines.push(format!("It is listed for {policy} in the last five minutes."));
    }
    lines.extend(incomplete.map(|why| format!("The answer may not be complete: {why}")));
    Ok(lines)
}

/// The events of the terminal. The thread that reads them ends with the process.
fn keys() -> UnboundedReceiver<Event> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if sender.send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

fn unusable(error: io::Error) -> Failure {
    Failure::Refused(format!("cannot draw on this terminal: {error}"))
}
