//! The live page in headless Chromium.

mod fleet;
mod guarded;
mod hostile;
mod keyboard;
mod looks;
mod stream;
mod words;
