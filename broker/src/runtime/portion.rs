//! How much of a connection is read before others get their turn.

/// Bytes of one connection, and at most at once: the kernel is not interrupted while it copies.
pub(super) const READ_BUDGET: usize = 256 * 1024;
/// Where several publish: so many frames, about a fifth of a millisecond's work. Fewer would cost more turns than they save waiting.
const FRAME_BUDGET: usize = 192;
/// The least that the bytes of so many frames come to.
const LEAST: usize = 32 * 1024;

/// The portion of one connection, by the size of its frames.
#[derive(Debug)]
pub(super) struct Portion {
    /// Bytes of the read that is being decoded, and its frames so far.
    read: usize,
    frames: usize,
    /// Bytes that a frame takes.
    frame_len: usize,
}

impl Default for Portion {
    fn default() -> Self {
        Self {
            read: 0,
            frames: 0,
            frame_len: READ_BUDGET,
        }
    }
}

impl Portion {
    /// Bytes to read before others get their turn. `fair`: others publish too.
    pub(super) fn bytes(&self, fair: bool) -> usize {
        match fair {
            true => self
                .frame_len
                .saturating_mul(FRAME_BUDGET)
                .clamp(LEAST, READ_BUDGET),
            false => READ_BUDGET,
        }
    }

    /// So many bytes were read and are decoded next.
    pub(super) fn begin(&mut self, bytes: usize) {
        (self.read, self.frames) = (bytes, 0);
    }

    /// A frame was decoded.
    pub(super) fn frame(&mut self) {
        self.frames += 1;
    }

    /// All that was read is decoded. Few bytes say nothing: they are an ACK between large messages, or the end of one.
    pub(super) fn end(&mut self) {
        let read = std::mem::take(&mut self.read);
        if read >= LEAST / 2
            && let Some(len) = read.checked_div(self.frames)
        {
            self.frame_len = len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reads: &[(usize, usize)]) -> Portion {
        let mut portion = Portion::default();
        for (bytes, frames) in reads {
            portion.begin(*bytes);
            (0..*frames).for_each(|_| portion.frame());
            portion.end();
        }
        portion
    }

    #[test]
    fn small_frames_are_read_in_small_portions_where_others_publish() {
        assert_eq!(Portion::default().bytes(true), READ_BUDGET);
        let small = after(&[(READ_BUDGET, 2000)]);
        assert_eq!(
            (small.bytes(true), small.bytes(false)),
            (LEAST, READ_BUDGET)
        );
        assert_eq!(
            after(&[(READ_BUDGET, 256)]).bytes(true),
            1024 * FRAME_BUDGET
        );
    }

    #[test]
    fn acks_between_large_messages_do_not_cut_them_up() {
        let mixed = after(&[(READ_BUDGET, 0), (128 << 10, 1), (400, 10), (LEAST, 0)]);
        assert_eq!(mixed.bytes(true), READ_BUDGET);
    }
}
