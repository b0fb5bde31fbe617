package sysfstest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
)

type rdmaDevice struct {
	at     string
	number int
}

var charDevices = []struct{ class, name string }{
	{"infiniband_verbs", "uverbs"}, {"infiniband_mad", "umad"}, {"infiniband_mad", "issm"},
}

// RemoveRDMA removes an RDMA device, like a move to another network namespace.
func (t *Tree) RemoveRDMA(name string) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.must(t.removeRDMA(name))
}

func (t *Tree) removeRDMA(name string) error {
	r, there := t.rdma[name]
	if !there {
		return fmt.Errorf("there is no RDMA device %q", name)
	}
	delete(t.rdma, name)
	gone := []string{"class/infiniband/" + name, r.at + "/infiniband/" + name}
	for _, of := range charDevices {
		gone = append(gone, fmt.Sprintf("class/%s/%s%d", of.class, of.name, r.number), fmt.Sprintf("%s/%s/%s%d", r.at, of.class, of.name, r.number))
	}
	for _, path := range gone {
		if err := os.RemoveAll(t.path(path)); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) removeRDMAOf(address string) error {
	for name, r := range t.rdma {
		if r.at == Device(address) {
			if err := t.removeRDMA(name); err != nil {
				return err
			}
		}
	}
	return nil
}

// RenameLink renames a network device, like udev.
func (t *Tree) RenameLink(name, to string) {
	t.t.Helper()
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.links, func(l netlinks.Link) bool { return l.Name == name })
	if i < 0 {
		t.t.Fatalf("there is no link %q", name)
	}
	target, err := os.Readlink(t.path("class/net/" + name))
	t.must(err)
	place := strings.TrimSuffix(strings.TrimLeft(target, "./"), "/"+name)
	t.must(os.Rename(t.path(place+"/"+name), t.path(place+"/"+to)))
	t.must(os.Remove(t.path("class/net/" + name)))
	t.must(t.link("class/net/"+to, place+"/"+to))
	t.links[i].Name = to
	for _, f := range t.functions {
		if f.Netdev == name {
			f.Netdev = to
		}
	}
}
