// The one place that says which go-tpc is built; go.sum holds the hashes that the sources must have.
module hugewise/tools/go-tpc

go 1.21

require github.com/pingcap/go-tpc v1.0.12
