//! That a server failed, and not what asks it.

/// The server failed: it closed, refused, or answered something else.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fell(pub String);
