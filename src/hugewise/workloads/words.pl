use strict;
use warnings;
my ($input, $output) = @ARGV;
my (%count, %after, %longest);
open(my $in, '<', $input) or die "$input: $!";
while (my $line = <$in>) {
    $line =~ s/\b(\w)(\w*)\b/\u$1$2/g if $line =~ /^(?:ba|ke|lo)/;
    $line =~ s/([aeiou])([bcdfgh])\1/$2$1$2/g;
    my $last = '';
    for my $word (split ' ', $line) {
        my $key = lc $word;
        $count{$key}++;
        $after{"$last $key"}++;
        $last = $key;
    }
    my $reversed = join ' ', map { scalar reverse $_ } split ' ', $line;
    $longest{length $reversed} = $reversed if $reversed =~ /(\w{2,})\w*\1/;
}
close $in;
open(my $out, '>', $output) or die "$output: $!";
for my $key (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count) { print $out "$key $count{$key}\n" }
for my $key (sort { $after{$b} <=> $after{$a} || $a cmp $b } keys %after) {
    print $out "$key $after{$key}\n" if $after{$key} > 1;
}
for my $key (sort { $a <=> $b } keys %longest) { print $out "$key $longest{$key}\n" }
close $out or die "$output: $!";
