//! When operations are due in an open loop, whatever the server does.
//!
//! All operations of a run lie on one evenly spaced grid. Every connection owns each C-th place of it, and a lane (the
//! connections of one thread to one instance) the places of its connections; any of them may send.

/// Numbers of a lane's connections among all, in order, and how many there are.
#[derive(Debug, Clone)]
pub struct Places {
    pub numbers: Vec<u64>,
    pub all: u64,
}

impl Places {
    /// The place in the grid of this lane's operation `index`.
    fn place(&self, index: u64) -> u64 {
        let own = self.numbers.len() as u64;
        index / own * self.all + self.numbers[(index % own) as usize]
    }

    /// How many of the first `total` places are this lane's.
    pub fn share(&self, total: u64) -> u64 {
        self.numbers.iter().map(|number| total.saturating_sub(*number).div_ceil(self.all)).sum()
    }
}

/// One lane's intended times.
#[derive(Debug, Clone)]
pub struct Schedule {
    places: Places,
    start_ns: u64,
    spacing_ns: f64,
    next: u64,
    end: u64,
}

impl Schedule {
    /// `total` operations over all lanes at `rate` a second from `start_ns` on.
    pub fn new(places: &Places, start_ns: u64, rate: f64, total: u64) -> Self {
        Self { places: places.clone(), start_ns, spacing_ns: 1e9 / rate, next: 0, end: places.share(total) }
    }

    /// When the next operation is due; None when there is none.
    pub fn due_ns(&self) -> Option<u64> {
        let offset = || (self.places.place(self.next) as f64 * self.spacing_ns) as u64;
        (self.next < self.end).then(|| self.start_ns + offset())
    }

    /// The next operation is on its way.
    pub fn advance(&mut self) {
        self.next += 1;
    }

    /// About how many are due at `now_ns` beside the first one.
    pub fn backlog(&self, now_ns: u64) -> u64 {
        let late = now_ns.saturating_sub(self.due_ns().unwrap_or(now_ns)) as f64;
        (late / self.spacing_ns * self.places.numbers.len() as f64 / self.places.all as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_share_one_even_grid() {
        let lanes = [vec![0, 3], vec![1], vec![2, 4]].map(|numbers| Places { numbers, all: 5 });
        let mut times = Vec::new();
        for lane in &lanes {
            let mut schedule = Schedule::new(lane, 1000, 1e8, 23);
            while let Some(due) = schedule.due_ns() {
                times.push(due);
                schedule.advance();
            }
        }
        times.sort_unstable();
        assert_eq!(times, (0..23).map(|place| 1000 + 10 * place).collect::<Vec<_>>());
        assert_eq!(lanes.iter().map(|lane| lane.share(23)).sum::<u64>(), 23);
    }

    #[test]
    fn what_was_not_sent_in_time_queues() {
        let schedule = Schedule::new(&Places { numbers: vec![0], all: 1 }, 0, 1e6, 100);
        assert_eq!((schedule.backlog(0), schedule.backlog(50_000)), (0, 50));
    }
}
