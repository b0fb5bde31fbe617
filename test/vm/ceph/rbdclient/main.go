// Command client attaches and detaches RBD images in a test guest with
// node/rbd.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/rbd"
	"github.com/cleatproject/cleat/test/testkit/cephtest"
	"github.com/cleatproject/cleat/volume/access"
)

const state = "/run/client"

func main() {
	kernelcall.Main()
	path := flag.String("site", "", "file with the cluster")
	timeout := flag.Duration("timeout", time.Minute, "bound of a call")
	flag.Parse()
	begun := time.Now()
	out, err := run(*path, *timeout, flag.Args())
	if err != nil {
		fmt.Printf("%s after %.1f s: %v\n", errs.KindOf(err), time.Since(begun).Seconds(), err)
		os.Exit(1)
	}
	fmt.Println(out)
}

func run(path string, timeout time.Duration, args []string) (string, error) {
	if len(args) != 2 {
		return "", errors.New("usage: client -site FILE attach|detach|inspect|compare IMAGE")
	}
	s, err := cephtest.ReadSite(path)
	if err != nil {
		return "", err
	}
	a := rbd.New(rbd.Config{
		Driver: "rbd.test", Dir: state, Timeout: timeout,
		Credentials: func() (cephconf.Credentials, error) { return cephconf.Credentials{User: s.User, Key: s.Key}, nil },
	})
	l := access.RBD{Ceph: access.Ceph{Monitors: s.Monitors}, Pool: s.Pool, Image: args[1]}
	if args[0] == "compare" {
		return compare(context.Background(), a, l, s)
	}
	return call(context.Background(), a, args[0], l)
}

func call(ctx context.Context, a *rbd.Attacher, name string, l access.RBD) (string, error) {
	t := node.Target{Locator: l}
	switch name {
	case "attach":
		at, err := a.Attach(ctx, t, node.Use{Block: true})
		if err != nil {
			return "", err
		}
		return at.Device.Path, at.File.Close()
	case "detach":
		return "detached", a.Detach(ctx, t)
	case "inspect":
		info, err := a.Inspect(ctx, t)
		return fmt.Sprintf("%+v", info), err
	}
	return "", fmt.Errorf("unknown call %s", name)
}
