//! Groups of servers that are asked in turns: which comes when, and how much work a turn is.

use std::str::FromStr;
use std::time::Duration;

use clap::Args;

use crate::common::mistake::Mistake;
use crate::load::times::seconds;

#[derive(Debug, Clone, Args)]
pub struct Slices {
    /// The servers are so many groups of equal size, in the order named
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10))]
    pub groups: u32,
    /// The timed phase: groups in the order in which they are asked, a digit a turn, as 0110
    #[arg(long, value_name = "DIGITS", conflicts_with_all = ["duration", "operations", "rate", "sla"])]
    pub turns: Option<Turns>,
    /// How long about a turn of the slowest group shall take
    #[arg(long, default_value = "0.25", value_parser = seconds, value_name = "SECONDS")]
    pub slice: Duration,
    /// Operations of each turn; 0: what the slowest group did in --slice at the rate of its lead
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub slice_operations: u64,
    /// The first part of each turn: asked for, not counted
    #[arg(long, default_value_t = 0.2, value_name = "SHARE")]
    pub wash_out: f64,
}

impl Slices {
    /// Refuse what clap cannot see.
    pub fn check(&self, servers: usize, has_lead: bool) -> Result<(), Mistake> {
        let wrong = |text: String| Err(Mistake(text));
        let groups = self.groups;
        if !servers.is_multiple_of(groups as usize) {
            return wrong(format!(
                "--groups {groups}: {servers} servers make no groups of equal size; name as many for each"
            ));
        }
        let Some(turns) = &self.turns else {
            return Ok(());
        };
        let counts = turns.counts();
        if let Some(stranger) =
            counts.get(groups as usize..).and_then(|above| above.iter().position(|count| *count > 0))
        {
            let stranger = groups as usize + stranger;
            return wrong(format!("--turns {turns}: there is no group {stranger}; give --groups {}", stranger + 1));
        }
        let own = &counts[..groups as usize];
        if own.iter().any(|count| *count != own[0]) {
            return wrong(format!("--turns {turns}: groups have {own:?} turns; give each as many, and at least one"));
        }
        if !(0.0..1.0).contains(&self.wash_out) {
            return wrong(format!("--wash-out {}: a share from 0 to below 1", self.wash_out));
        }
        if self.slice_operations == 0 && (!has_lead || self.slice.is_zero()) {
            return wrong(
                "--turns: a turn is as long as --slice by the rate of the lead; give --lead and --slice above 0, or \
                 --slice-operations"
                    .into(),
            );
        }
        Ok(())
    }

    /// Groups in the order in which they first come.
    pub fn first_round(&self) -> Vec<usize> {
        let mut order = Vec::new();
        for (group, round) in self.turns.iter().flat_map(Turns::rounds) {
            if round == 0 {
                order.push(group);
            }
        }
        if order.is_empty() { (0..self.groups as usize).collect() } else { order }
    }

    /// Operations of a turn, where the slowest group did `rate` a second in its lead.
    pub fn operations(&self, rate: f64) -> u64 {
        match self.slice_operations {
            0 => ((rate * self.slice.as_secs_f64()).round() as u64).max(1),
            given => given,
        }
    }

    /// Of a turn's `operations`, those that are not counted. One at least is.
    pub fn washed(&self, operations: u64) -> u64 {
        ((operations as f64 * self.wash_out) as u64).min(operations.saturating_sub(1))
    }
}

/// The order in which groups are asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Turns(Vec<usize>);

impl Turns {
    /// Each turn's group and round: that of a group's r-th turn is r.
    pub fn rounds(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut taken = [0; 10];
        self.0.iter().map(move |group| {
            taken[*group] += 1;
            (*group, taken[*group] - 1)
        })
    }

    /// How many turns each group has, of all that a digit can name.
    fn counts(&self) -> [u64; 10] {
        let mut counts = [0; 10];
        self.0.iter().for_each(|group| counts[*group] += 1);
        counts
    }
}

impl FromStr for Turns {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits: Option<Vec<usize>> = text.chars().map(|digit| Some(digit.to_digit(10)? as usize)).collect();
        digits.filter(|turns| !turns.is_empty()).map(Self).ok_or_else(|| "write a digit for each turn, as 0110".into())
    }
}

impl std::fmt::Display for Turns {
    fn fmt(&self, form: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|group| write!(form, "{group}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::common::fuzz;

    fn slices(groups: u32, turns: &str) -> Slices {
        let slice = Duration::from_millis(250);
        Slices { groups, turns: Some(turns.parse().unwrap()), slice, slice_operations: 0, wash_out: 0.2 }
    }

    #[test]
    fn the_turns_of_a_group_are_its_rounds() {
        let order = slices(3, "201012");
        assert_eq!(order.first_round(), [2, 0, 1]);
        let rounds: Vec<_> = order.turns.as_ref().unwrap().rounds().collect();
        assert_eq!(rounds, [(2, 0), (0, 0), (1, 0), (0, 1), (1, 1), (2, 1)]);
        assert_eq!(Slices { turns: None, ..order }.first_round(), [0, 1, 2]);
    }

    #[test]
    fn a_turn_is_as_much_work_for_every_group() {
        let order = slices(2, "01");
        assert_eq!((order.operations(100_000.0), order.operations(0.1)), (25_000, 1));
        assert_eq!((order.washed(25_000), order.washed(4), order.washed(1)), (5000, 0, 0));
        let given = Slices { slice_operations: 7, wash_out: 1.0 - f64::EPSILON / 2.0, ..order };
        assert_eq!((given.operations(100_000.0), given.washed(7)), (7, 6));
    }

    #[test]
    fn what_is_no_order_is_refused_with_the_cure() {
        let cases = [
            (slices(3, "012"), 4, true, "make no groups of equal size"),
            (slices(2, "0122"), 2, true, "there is no group 2; give --groups 3"),
            (slices(2, "011"), 2, true, "groups have [1, 2] turns"),
            (slices(2, "00"), 2, true, "groups have [2, 0] turns"),
            (slices(2, "01"), 2, false, "give --lead"),
            (Slices { slice: Duration::ZERO, ..slices(2, "01") }, 2, true, "--slice above 0"),
            (Slices { wash_out: 1.0, ..slices(2, "01") }, 2, true, "--wash-out 1"),
            (Slices { wash_out: f64::NAN, ..slices(2, "01") }, 2, true, "--wash-out NaN"),
        ];
        for (order, servers, has_lead, words) in cases {
            let mistake = order.check(servers, has_lead).unwrap_err();
            assert!(mistake.0.contains(words), "{mistake}");
        }
        assert!(slices(2, "0110").check(4, true).is_ok());
        assert!(Slices { slice_operations: 5, ..slices(10, "9876543210") }.check(10, false).is_ok());
    }

    proptest! {
        #![proptest_config(fuzz::config())]

        #[test]
        fn whatever_is_written_is_an_order_or_refused(text in fuzz::broken_text(&["0110", "201021"])) {
            if let Ok(turns) = text.parse::<Turns>() {
                prop_assert_eq!(turns.to_string().parse(), Ok(turns));
            }
        }
    }
}
