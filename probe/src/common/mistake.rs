//! What the caller did wrong.

/// A mistake of the caller (exit status 2): what was wrong, and how to put it right.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(pub String);
