package dpu

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
	"github.com/cleatproject/cleat/test/testkit"
)

func spdkIs(err error, m spdk.Meaning) bool { return errors.Is(err, m) }

// agrees returns an error unless exactly these devices were acknowledged, by
// volume: each is usable and listed, no other device is, and neither SNAP nor
// the machine has an object that none of them needs.
func (s *site) agrees(devices map[string]string, volumes ...volume) error {
	listed, err := s.listed()
	if err != nil {
		return err
	}
	if !maps.Equal(listed, devices) {
		return fmt.Errorf("ListDevices has %v, want %v", listed, devices)
	}
	needed := map[string]bool{}
	for _, v := range volumes {
		device, has := devices[v.id]
		if !has {
			continue
		}
		if err := s.usable(v, device); err != nil {
			return err
		}
		s.needs(v, device, needed)
	}
	if len(listed) > 0 && len(needed) == 0 {
		return fmt.Errorf("unknown volumes: %v", listed)
	}
	return s.noMore(needed)
}

// needs adds the objects of a device.
func (s *site) needs(v volume, device string, needed map[string]bool) {
	switch {
	case v.subnqn != "":
		needed["subsystem "+v.subnqn] = true
		if v.keys > 0 {
			needed["key of "+v.id] = true
		}
	case v.mode == "Filesystem":
		needed["fsdev "+device], needed["mount "+v.id] = true, true
	case v.image != "":
		needed["bdev "+device], needed["cluster"] = true, true
	default:
		needed["bdev "+device] = true
	}
}

// noMore looks for objects that no device needs.
func (s *site) noMore(needed map[string]bool) error {
	var orphans []string
	orphan := func(what, name string) {
		if !needed[what] {
			orphans = append(orphans, what+" ("+name+")")
		}
	}
	controllers, err := s.rpc.NVMeControllers(s.ctx)
	if err != nil {
		return err
	}
	for _, c := range controllers {
		orphan("subsystem "+c.Paths[0].Address.SubNQN, "controller "+c.Name)
	}
	bdevs, err := s.rpc.Bdevs(s.ctx)
	if err != nil {
		return err
	}
	for _, b := range bdevs {
		if len(b.Driver.NVMe) > 0 { // as many as the subsystem has
			orphan("subsystem "+b.Driver.NVMe[0].Address.SubNQN, "bdev "+b.Name)
		} else {
			orphan("bdev "+b.Name, b.ProductName)
		}
	}
	for _, look := range []func(func(what, name string)) error{s.heldFsdevs, s.heldKeys, s.heldClusters, s.heldMounts} {
		if err := look(orphan); err != nil {
			return err
		}
	}
	if len(orphans) > 0 {
		return fmt.Errorf("held, and no device needs it: %q", orphans)
	}
	return nil
}

func (s *site) heldFsdevs(found func(what, name string)) error {
	var all []struct{ Name string }
	if err := s.rpc.Call(s.ctx, "fsdev_get_fsdevs", nil, &all); err != nil && !isUnknown(err) {
		return err
	}
	for _, f := range all {
		found("fsdev "+f.Name, "in SNAP")
	}
	return nil
}

// heldKeys: the name of a key's file contains the volume.
func (s *site) heldKeys(found func(what, name string)) error {
	var all []struct{ Name, Path string }
	if err := s.rpc.Call(s.ctx, "keyring_get_keys", nil, &all); err != nil && !isUnknown(err) {
		return err
	}
	for _, k := range all {
		_, id, _ := strings.Cut(strings.TrimPrefix(k.Path, s.keys()+"/"), "-")
		found("key of "+id, k.Name)
	}
	return nil
}

// heldClusters: SPDK refuses an empty list.
func (s *site) heldClusters(found func(what, name string)) error {
	var all []struct {
		Name string `json:"cluster_name"`
	}
	if err := s.rpc.Call(s.ctx, "bdev_rbd_get_clusters_info", nil, &all); err != nil && !spdkIs(err, spdk.NotFound) && !isUnknown(err) {
		return err
	}
	for _, c := range all {
		found("cluster", c.Name)
	}
	return nil
}

// heldMounts finds mounts and mount points.
func (s *site) heldMounts(found func(what, name string)) error {
	table, err := mount.Table(s.ctx)
	if err != nil {
		return err
	}
	for _, e := range table {
		if id, below := strings.CutPrefix(e.Target, s.volumes()+"/"); below {
			found("mount "+id, "mounted")
		}
	}
	points, err := os.ReadDir(s.volumes())
	for _, p := range points {
		found("mount "+p.Name(), "its directory")
	}
	return err
}

// awaitAgreement waits until agrees returns nil.
func (s *site) awaitAgreement(devices map[string]string, volumes ...volume) {
	s.t.Helper()
	s.within(cmp.Or(s.agreement, s.patience), "SNAP holds what was acknowledged and nothing else", func() error { return s.agrees(devices, volumes...) })
}

// empty waits until no object is left.
func (s *site) empty() {
	s.t.Helper()
	s.awaitAgreement(map[string]string{})
}

// neighbour is a device that other calls must not disturb.
type neighbour struct {
	volume
	device string
	nqn    string // of the emulated subsystem that exposes it to the host
	mount  int    // id of a directory's mount
}

// neighbour creates a volume's device and exposes it to the host.
func (s *site) neighbour(v volume) neighbour {
	s.t.Helper()
	n := neighbour{volume: v, device: s.create(v)}
	n.nqn = "nqn.2022-10.io.nvda.nvme:dpf-" + v.id
	if v.mode == "Filesystem" {
		e, _, err := mount.At(s.ctx, s.volumes()+"/"+v.id)
		testkit.Must(s.t, err)
		n.mount = e.ID
		s.snap.Forget() // what was deleted before was not this one
		return n
	}
	testkit.Must(s.t, s.rpc.Do(s.ctx, "nvme_subsystem_create", map[string]any{"nqn": n.nqn}))
	testkit.Must(s.t, s.rpc.Do(s.ctx, "nvme_namespace_create", map[string]any{
		"bdev_type": "spdk", "nqn": n.nqn, "nsid": 1, "uuid": namespaceUUID(v.id, 1), "bdev_name": n.device,
	}))
	return n
}

// unharmed fails unless the host has had the device all the time: once removed
// from the host it does not come back by itself.
func (s *site) unharmed(n neighbour) {
	s.t.Helper()
	s.unharmedInSNAP(n)
	s.within(cmp.Or(s.agreement, s.patience), "the neighbour is usable", func() error { return s.usable(n.volume, n.device) })
}

// unharmedInSNAP is the part of unharmed that needs no plugin.
func (s *site) unharmedInSNAP(n neighbour) {
	s.t.Helper()
	if n.mode == "Filesystem" {
		if e, _, err := mount.At(s.ctx, s.volumes()+"/"+n.id); err != nil || e.ID != n.mount {
			s.t.Errorf("the neighbour was remounted: %v", err)
		}
		for _, c := range s.snap.Calls() {
			if c.Method == "fsdev_aio_delete" && strings.Contains(string(c.Params), n.device) {
				s.t.Errorf("the neighbour's device was deleted")
			}
		}
		return
	}
	shown := snap.SNAP{RPC: s.rpc}
	all, err := shown.Subsystems(s.ctx)
	if err != nil || !slices.ContainsFunc(all, func(sub snap.Subsystem) bool {
		return slices.ContainsFunc(sub.Namespaces, func(ns snap.Namespace) bool { return ns.Bdev == n.device })
	}) {
		s.t.Errorf("the neighbour's device %s was removed while the host used it: %+v, %v", n.device, all, err)
	}
}

// hide removes a neighbour from the host.
func (s *site) hide(n neighbour) {
	s.t.Helper()
	if n.mode == "Filesystem" {
		return
	}
	testkit.Must(s.t, s.rpc.Do(s.ctx, "nvme_namespace_destroy", map[string]any{"nqn": n.nqn, "nsid": 1}))
	testkit.Must(s.t, s.rpc.Do(s.ctx, "nvme_subsystem_destroy", map[string]any{"nqn": n.nqn}))
}
