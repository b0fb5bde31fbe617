package pool

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/sriov/discovery"
)

// crowd is a machine with many VFs, 64 to a PF, and resources that each take
// an equal share of them by pfNames.
func crowd(functions, resources int) (*discovery.Snapshot, string) {
	const perPF = 64
	s := &discovery.Snapshot{}
	for i := range functions {
		pf, vf := i/perPF, i%perPF
		s.Functions = append(s.Functions, discovery.Function{
			Address: fmt.Sprintf("%04x:%02x:%02x.%d", pf, 1+vf/256, vf/8, vf%8), Kind: discovery.Network, Vendor: "8086", Device: "154c", Driver: "vfio-pci",
			PF: fmt.Sprintf("%04x:00:00.0", pf), PFNames: []string{fmt.Sprintf("eth%d", pf)}, VF: vf,
		})
	}
	var texts, items []string
	for pf := range (functions + perPF - 1) / perPF {
		items = append(items, fmt.Sprintf("eth%d", pf))
	}
	for r := range resources {
		var ranges []string
		for _, i := range items {
			ranges = append(ranges, fmt.Sprintf("%q", fmt.Sprintf("%s#%d-%d", i, r*perPF/resources, (r+1)*perPF/resources-1)))
		}
		texts = append(texts, fmt.Sprintf(`{"resourceName":"r%d","selectors":[{"vendors":["8086"],"drivers":["vfio-pci"],"pfNames":[%s]}]}`, r, strings.Join(ranges, ",")))
	}
	return s, strings.Join(texts, ",")
}

func TestCrowd(t *testing.T) {
	s, text := crowd(2048, 32)
	a := Assign(parsed(t, text), s, Options{})
	for _, p := range a.Pools {
		if len(p.Members) != 64 {
			t.Errorf("%s has %d members, want 64", p.Resource.FullName(), len(p.Members))
		}
	}
	if len(a.Free)+len(a.LeftOut)+len(a.Warnings) > 0 {
		t.Errorf("free %d, left out %d, warnings %v", len(a.Free), len(a.LeftOut), a.Warnings)
	}
}

// The time per function is the same for all sizes.
func BenchmarkAssign(b *testing.B) {
	for _, functions := range []int{64, 256, 512, 2048} {
		b.Run(fmt.Sprintf("functions=%d/resources=32", functions), func(b *testing.B) {
			s, text := crowd(functions, 32)
			c := parsed(b, text)
			b.ReportAllocs()
			for b.Loop() {
				Assign(c, s, Options{})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*functions), "ns/function")
		})
	}
}

func BenchmarkExplain(b *testing.B) {
	s, text := crowd(2048, 32)
	c := parsed(b, text)
	b.ReportAllocs()
	for b.Loop() {
		Explain(c, s, Options{})
	}
}
