// Command inside is the helper of the power loss test in a guest: it mounts the
// pool's disk and serves the oracle on the host (package remote).
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/crash/workload/site"
	"github.com/cleatproject/cleat/test/vm/power/remote"
)

type options struct {
	socket, hits         string
	device, fsType, data string
	site.Site
}

func main() {
	kernelcall.Main()
	var o options
	flag.StringVar(&o.socket, "socket", "", "Unix socket to listen on")
	flag.StringVar(&o.hits, "hits", "", "FIFO to create, to which a driver writes its crash point")
	flag.StringVar(&o.device, "device", "", "disk to mount")
	flag.StringVar(&o.fsType, "fs-type", "", "file system type of the disk")
	flag.StringVar(&o.data, "data", "", "mount point of the disk")
	flag.StringVar(&o.Workers, "workers", "", "directory of the workload's workers")
	flag.StringVar(&o.Pool, "pool", "", "the driver's pool")
	flag.Parse()
	if err := o.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "inside:", err)
		os.Exit(1)
	}
}

func (o options) run(ctx context.Context) error {
	if err := os.MkdirAll(o.data, 0o755); err != nil {
		return err
	}
	if err := awaitDevice(ctx, o.device); err != nil {
		return err
	}
	if err := mount.Mount(ctx, mount.Spec{Source: o.device, Target: o.data, FSType: o.fsType}); err != nil {
		return err
	}
	stops := make(chan string)
	if err := o.follow(stops); err != nil {
		return err
	}
	listener, err := net.Listen("unix", o.socket)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		go func() { // until the guest powers off
			if err := remote.Serve(conn, o.Site, stops); err != nil {
				fmt.Fprintln(os.Stderr, "inside:", err)
			}
		}()
	}
}

// awaitDevice waits for a device node.
func awaitDevice(ctx context.Context, path string) error {
	const bound = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("device %s did not appear within %v", path, bound)
		}
	}
}

// follow forwards the crash points that drivers write to the FIFO.
func (o options) follow(stops chan<- string) error {
	if err := unix.Mkfifo(o.hits, 0o600); err != nil {
		return fmt.Errorf("create FIFO %s: %w", o.hits, err)
	}
	fifo, err := os.OpenFile(o.hits, os.O_RDWR, 0) // an own writer prevents EOF
	if err != nil {
		return err
	}
	go func() {
		defer fifo.Close()
		for lines := bufio.NewScanner(fifo); lines.Scan(); {
			stops <- lines.Text()
		}
	}()
	return nil
}
