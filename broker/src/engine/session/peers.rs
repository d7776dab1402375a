//! Who is at the other end of a session, for statistics.

use super::Sessions;
use crate::engine::admin::SessionInfo;
use crate::engine::message::SessionRef;

/// Characters kept of what a client says it is.
const VERSION_MAX: usize = 256;

/// A client's version as it is kept.
pub(super) fn short(version: &str) -> String {
    version.chars().take(VERSION_MAX).collect()
}

impl Sessions {
    /// The peers of sessions of this core; `None` for one that is gone.
    pub(crate) fn describe(&mut self, sessions: &[SessionRef]) -> Vec<Option<SessionInfo>> {
        let mut describe = |session: &SessionRef| {
            self.find(*session).map(|session| SessionInfo {
                address: session.peer.to_string(),
                client_version: session.client_version.clone(),
            })
        };
        sessions.iter().map(&mut describe).collect()
    }
}
