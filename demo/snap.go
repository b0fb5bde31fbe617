package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cleatproject/cleat/dpu/client"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	dpuPool    = "3f6a2f0e-5a55-4a3c-9f5e-2d1c9f0a7b22"
	dpuNQN     = "nqn.2026-01.dev.cleat:demo"
	dpuLateNQN = "nqn.2026-01.dev.cleat:demo-late" // its namespace does not appear during the demo
	// dpuScene is the NVMe-oF network of the double.
	dpuScene = `{"subsystems": [
		{"nqn": "` + dpuNQN + `", "addresses": ["TCP,192.0.2.10,4420"], "namespaces": [
			{"nsid": 1, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b901", "bytes": 1073741824},
			{"nsid": 2, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b902", "bytes": 1073741824}]},
		{"nqn": "` + dpuLateNQN + `", "addresses": ["TCP,192.0.2.10,4420"], "namespaces": [
			{"nsid": 3, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b903", "bytes": 1073741824, "after": "1h"}]}]}`
)

func newDevice(volume, mode string, a access.Access) client.Create {
	c := client.Create{Volume: volume, Mode: request.Mode(mode)}
	c.Modes = append(c.Modes, 1) // ACCESS_MODE_RWO
	c.Contexts.Volume = access.Encode(a)
	return c
}

func namespace(nqn string, nsid uint32) access.NVMe {
	return access.NVMe{Transport: "tcp", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:4420")}, NQN: nqn, NSID: nsid}
}

// wanted returns the devices to create.
func (u *dpu) wanted(filesystems bool) []client.Create {
	all := []client.Create{newDevice("demo-file", "Block", access.File{Pool: dpuPool, Name: "disk.img"})}
	switch {
	case u.snapSocket == "":
		all = append(all, newDevice("demo-one", "Block", namespace(dpuNQN, 1)), newDevice("demo-two", "Block", namespace(dpuNQN, 2)))
	case u.target != nil:
		all = append(all, newDevice("demo-one", "Block", *u.target))
	}
	if filesystems {
		all = append(all, newDevice("demo-share", "Filesystem", access.File{Pool: dpuPool, Name: "share"}))
	}
	return all
}

// objects lists the objects in SNAP.
func (u *dpu) objects(ctx context.Context) (all []string, err error) {
	for _, method := range []string{"bdev_get_bdevs", "bdev_nvme_get_controllers", "fsdev_get_fsdevs", "nvme_subsystem_list"} {
		var found []struct{ Name, NQN string }
		if err := u.rpc.Call(ctx, method, nil, &found); err != nil && !errors.Is(err, spdk.UnknownMethod) {
			return nil, err
		}
		for _, f := range found {
			all = append(all, method+" "+f.Name+f.NQN)
		}
	}
	slices.Sort(all)
	return all, nil
}

// awaitObjects waits until SNAP has exactly these objects.
func (u *dpu) awaitObjects(ctx context.Context, what []string) {
	eventually(ctx, func() error {
		held, err := u.objects(ctx)
		if err == nil && !slices.Equal(held, what) {
			err = fmt.Errorf("SNAP has %q, want %q", held, what)
		}
		return err
	})
}
