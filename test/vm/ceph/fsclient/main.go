// Command client is the node service of one volume in a test guest: each run
// opens a node.Manager with node/cephfs, reconciles, and makes one call.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephfs"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	state = "/var/lib/client"
	paths = "/vol"
)

var (
	site     = flag.String("site", "", "file with the cluster")
	timeout  = flag.Duration("timeout", time.Minute, "bound of a call")
	group    = flag.Int("group", -1, "mount group")
	readOnly = flag.Bool("read-only", false, "access mode of several readers")
	flags    = flag.String("flags", "", "a mount flag")
	size     = flag.Int64("size", 0, "bytes to expand to")
)

func main() {
	kernelcall.Main()
	flag.Parse()
	begun := time.Now()
	out, err := run(context.Background(), flag.Args())
	if err != nil {
		fmt.Printf("%s after %.1f s: %v\n", errs.KindOf(err), time.Since(begun).Seconds(), err)
		os.Exit(1)
	}
	fmt.Println(out)
}

func run(ctx context.Context, args []string) (string, error) {
	if len(args) != 3 {
		return "", errors.New("usage: client [flags] CALL NAME DIRECTORY")
	}
	s, err := cephtest.ReadSite(*site)
	if err != nil {
		return "", err
	}
	a := cephfs.New(cephfs.Config{
		Driver: "cephfs.test", Dir: state, Timeout: *timeout,
		Credentials: func() (cephconf.Credentials, error) { return cephconf.Credentials{User: s.User, Key: s.Key}, nil },
		VolumeID:    func(l access.CephFS) volume.ID { return volume.ID(filepath.Base(filepath.Dir(l.Path))) },
	})
	if err := os.MkdirAll(state, 0o700); err != nil {
		return "", err
	}
	m, err := node.Open(ctx, node.Config{Store: filepath.Join(state, "node.db"), Attachers: map[string]node.Attacher{cephfs.Protocol(): a}})
	if err != nil {
		return "", err
	}
	if err := m.Reconcile(ctx); err != nil {
		return "", err
	}
	l := access.CephFS{Ceph: access.Ceph{Monitors: s.Monitors}, FS: s.FS, Path: args[2]}
	return call(ctx, m, a, args[0], args[1], l)
}

func call(ctx context.Context, m *node.Manager, a *cephfs.Attacher, name, id string, l access.CephFS) (string, error) {
	v, dir := volume.ID(id), filepath.Join(paths, id)
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	c := volume.Capability{Mode: volume.MultiNodeMultiWriter}
	if *readOnly {
		c.Mode = volume.MultiNodeReaderOnly
	}
	if *group >= 0 {
		c.MountGroup = group
	}
	if *flags != "" {
		c.MountFlags = []string{*flags}
	}
	switch name {
	case "stage":
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", err
		}
		if err := os.Mkdir(staging, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", err
		}
		return "staged", m.Stage(ctx, node.StageRequest{Volume: v, Staging: staging, Locator: l, Capability: c})
	case "publish":
		return "published", m.Publish(ctx, node.PublishRequest{Volume: v, Staging: staging, Target: target, Capability: c})
	case "unpublish":
		return "unpublished", m.Unpublish(ctx, node.UnpublishRequest{Volume: v, Target: target})
	case "unstage":
		return "unstaged", m.Unstage(ctx, node.UnstageRequest{Volume: v, Staging: staging})
	case "stats":
		return print(m.Stats(ctx, node.StatsRequest{Volume: v, Path: target}))
	case "health":
		return print(m.Health(ctx, v))
	case "expand":
		return print(m.Expand(ctx, node.ExpandRequest{Volume: v, Path: target, Size: volume.SizeRange{Required: *size}}))
	case "inspect":
		info, err := a.Inspect(ctx, node.Target{Locator: l})
		return fmt.Sprintf("%+v", info), err
	case "held":
		held, err := a.Held(ctx)
		return fmt.Sprint(len(held)), err
	}
	return "", fmt.Errorf("unknown call %s", name)
}

func print[T any](result T, err error) (string, error) {
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(result)
	return string(data), err
}
