package host

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/cleatproject/cleat/sriov/discovery/sysfstest"
)

// BenchmarkRead: as many virtual functions, 256 on each card.
func BenchmarkRead(b *testing.B) {
	const each = 256
	for _, cards := range []int{1, 8} {
		b.Run(strconv.Itoa(cards*each), func(b *testing.B) {
			tree := sysfstest.New(b)
			for i := range cards {
				pf := sysfstest.Function{
					Address: fmt.Sprintf("0000:%02x:00.0", 0x10*(i+1)), Vendor: "8086", Device: "1572", Driver: "i40e", Netdev: fmt.Sprintf("eth%d", i),
					TotalVFs: each, VFDevice: "154c", VFDriver: "iavf",
				}
				tree.Add(pf)
				if err := tree.Write("bus/pci/devices/"+pf.Address+"/sriov_numvfs", strconv.Itoa(each)); err != nil {
					b.Fatal(err)
				}
			}
			h := New(Config{Sysfs: tree.Sysfs, Links: sysfstest.Links{Tree: tree}, Network: sysfstest.Network{Tree: tree}})
			for b.Loop() {
				s, err := h.Read(b.Context())
				if err != nil || len(s.PFs) != cards || len(s.PFs[cards-1].VFs) != each {
					b.Fatalf("%d physical functions, %v", len(s.PFs), err)
				}
			}
		})
	}
}
