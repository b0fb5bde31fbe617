package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/inotify"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
)

const (
	netdev     = "ens1f0"
	atBoot     = 4   // initial virtual functions
	groupCount = 256 // IOMMU groups, which exist before the functions
	firstVF    = 1000
)

// The functions are bound to vfio-pci.
func card() sysfstest.Function {
	return sysfstest.Function{
		Address: "0000:3b:00.0", Vendor: "8086", Device: "1592", Driver: "ice", Netdev: netdev, NUMA: 1, IOMMUGroup: "10",
		TotalVFs: 8, VFDevice: "1889", VFDriver: "vfio-pci",
	}
}

// failure ends the process on errors of the tree.
type failure struct{ end context.CancelCauseFunc }

func (failure) Helper()                             {}
func (f failure) Fatal(args ...any)                 { f.end(fmt.Errorf("the machine: %s", fmt.Sprint(args...))) }
func (f failure) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

// kernel reacts after a write to sriov_numvfs, so it cannot refuse it.
type kernel struct {
	tree    *sysfstest.Tree
	numVFs  string
	watcher *inotify.Watcher
	before  func() (offered, capacity int) // before each change
	ended   chan struct{}

	mu     sync.Mutex
	writes []change
}

// change has the number of functions, and the kubelet's devices then.
type change struct {
	NumVFs   int       `json:"numVFs"`
	At       time.Time `json:"at"`
	Offered  int       `json:"offered"`
	Capacity int       `json:"capacity"`
}

func boot(dir string, end context.CancelCauseFunc, before func() (offered, capacity int)) (*kernel, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	tree := sysfstest.At(dir, failure{end})
	pf := card()
	tree.Add(pf)
	if err := os.MkdirAll(filepath.Join(tree.Dev, "vfio"), 0o755); err != nil {
		return nil, err
	}
	nodes := []string{"vfio"}
	for i := range groupCount {
		nodes = append(nodes, strconv.Itoa(firstVF+i))
	}
	for _, node := range nodes {
		if err := os.WriteFile(filepath.Join(tree.Dev, "vfio", node), nil, 0o600); err != nil {
			return nil, err
		}
	}
	k := &kernel{tree: tree, numVFs: filepath.Join(tree.Sysfs, sysfstest.Device(pf.Address), "sriov_numvfs"), before: before, ended: make(chan struct{})}
	if err := tree.Write(k.numVFs, strconv.Itoa(atBoot)); err != nil {
		return nil, err
	}
	var err error
	if k.watcher, err = inotify.New(); err != nil {
		return nil, err
	}
	if _, err := k.watcher.Add(k.numVFs, unix.IN_CLOSE_WRITE); err != nil {
		return nil, err
	}
	go func() {
		defer close(k.ended)
		end(k.serve())
	}()
	return k, nil
}

func (k *kernel) serve() error {
	var events []inotify.Event
	for {
		var err error
		if events, err = k.watcher.Read(context.Background(), time.Time{}, events[:0]); err != nil {
			return err
		}
		if err := k.react(); err != nil {
			return err
		}
	}
}

func (k *kernel) react() error {
	text, err := os.ReadFile(k.numVFs)
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	if n == len(k.tree.Virtual(card().Address)) {
		return nil
	}
	c := change{NumVFs: n, At: time.Now()}
	c.Offered, c.Capacity = k.before()
	k.mu.Lock()
	k.writes = append(k.writes, c)
	k.mu.Unlock()
	return k.tree.Write(k.numVFs, strconv.Itoa(n))
}

func (k *kernel) changes() []change {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]change{}, k.writes...)
}

func (k *kernel) close() error {
	err := k.watcher.Close()
	<-k.ended
	return err
}
