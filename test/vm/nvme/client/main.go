// Command client compares, in a test guest, the attachment of a volume by
// node/nvme with a bare connection. It prints medians.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/volume/access"
)

const rounds = 11

func main() {
	kernelcall.Main()
	address := flag.String("address", "", "of the target")
	l := access.NVMe{Transport: "tcp"}
	flag.StringVar(&l.NQN, "nqn", "", "of the subsystem")
	flag.StringVar(&l.UUID, "uuid", "", "of the namespace")
	flag.StringVar(&l.HostNQN, "host", "", "host NQN")
	flag.Parse()
	at, err := netip.ParseAddrPort(*address)
	if err == nil {
		l.Paths = []netip.AddrPort{at}
		err = compare(context.Background(), l)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compare attaches and connects in turns.
func compare(ctx context.Context, l access.NVMe) error {
	dir, err := os.MkdirTemp("", "client")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	a, err := nvme.New(nvme.Config{Dir: dir, HostNQN: l.HostNQN})
	if err != nil {
		return err
	}
	var attach, detach, connect, remove []time.Duration
	for range rounds {
		up, down, err := attachOnce(ctx, a, l)
		if err != nil {
			return err
		}
		attach, detach = append(attach, up), append(detach, down)
		if up, down, err = connectOnce(l); err != nil {
			return err
		}
		connect, remove = append(connect, up), append(remove, down)
	}
	fmt.Printf("attach %d ms, bare connect %d ms; detach %d ms, bare delete %d ms\n", median(attach), median(connect), median(detach), median(remove))
	return a.Close(ctx)
}

func median(all []time.Duration) int64 {
	slices.Sort(all)
	return all[len(all)/2].Milliseconds()
}

func attachOnce(ctx context.Context, a *nvme.Attacher, l access.NVMe) (up, down time.Duration, err error) {
	begun := time.Now()
	at, err := a.Attach(ctx, node.Target{Locator: l}, node.Use{Block: true})
	if err != nil {
		return 0, 0, err
	}
	up = time.Since(begun)
	if err := at.File.Close(); err != nil {
		return 0, 0, err
	}
	begun = time.Now()
	err = a.Detach(ctx, node.Target{Locator: l})
	return up, time.Since(begun), err
}

// connectOnce writes to the kernel's files, and waits for the device node and
// its end. No other NVMe device exists.
func connectOnce(l access.NVMe) (up, down time.Duration, err error) {
	const disks = "/dev/nvme[0-9]*n[0-9]*"
	begun := time.Now()
	fabrics, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
	if err != nil {
		return 0, 0, err
	}
	defer fabrics.Close()
	if _, err := fabrics.WriteString(strings.Join([]string{
		"transport=tcp", "traddr=" + l.Paths[0].Addr().String(), fmt.Sprintf("trsvcid=%d", l.Paths[0].Port()),
		"nqn=" + l.NQN, "hostnqn=" + l.HostNQN, "hostid=" + access.HostID(l.HostNQN),
	}, ",")); err != nil {
		return 0, 0, err
	}
	answer := make([]byte, 64)
	n, err := fabrics.Read(answer)
	if err != nil {
		return 0, 0, err
	}
	var instance int
	if _, err := fmt.Sscanf(string(answer[:n]), "instance=%d", &instance); err != nil {
		return 0, 0, err
	}
	if err := await(disks, 1); err != nil {
		return 0, 0, err
	}
	up = time.Since(begun)
	begun = time.Now()
	if err := os.WriteFile(fmt.Sprintf("/sys/class/nvme/nvme%d/delete_controller", instance), []byte("1"), 0); err != nil {
		return 0, 0, err
	}
	err = await(disks, 0)
	return up, time.Since(begun), err
}

// await polls until the pattern matches that many files.
func await(pattern string, count int) error {
	const bound = time.Minute
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == count {
			return err
		}
		if time.Since(begun) > bound {
			return fmt.Errorf("%s: found %v, expected %d", pattern, found, count)
		}
	}
}
