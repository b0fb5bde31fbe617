package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// prepare mounts file systems, loads modules and sets up the network.
func prepare() error {
	if err := mountAll([]mountPoint{
		{"proc", "/proc", "", 0}, {"sysfs", "/sys", "", 0}, {"devtmpfs", "/dev", "mode=0755", 0},
		{"devpts", "/dev/pts", "mode=0620,ptmxmode=0666", 0}, {"tmpfs", "/dev/shm", "mode=1777", 0},
		{"tmpfs", "/run", "mode=0755", 0}, {"tmpfs", "/tmp", "mode=1777", 0},
	}); err != nil {
		return err
	}
	if err := os.Chmod("/", 0o755); err != nil { // the initramfs root has mode 01777
		return err
	}
	// Shared propagation as under systemd: mounts below / appear in every
	// namespace.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share the mounts below /: %w", err)
	}
	if err := unix.Sethostname([]byte("guest")); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := os.Symlink("/usr/bin/busybox", "/usr/sbin/modprobe"); err != nil { // see package image
		return err
	}
	config, err := readConfig()
	if err != nil {
		return err
	}
	for _, path := range config.Modules {
		if err := loadModule(path); err != nil {
			return err
		}
	}
	if err := mountAll([]mountPoint{{"configfs", "/sys/kernel/config", "", 0}, {"debugfs", "/sys/kernel/debug", "", 0}}); err != nil {
		return err
	}
	return setUpNetwork(config)
}

func readConfig() (wire.Config, error) {
	var config wire.Config
	data, err := os.ReadFile(wire.ConfigPath)
	if err != nil {
		return config, err
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return config, fmt.Errorf("%s: %w", wire.ConfigPath, err)
	}
	return config, nil
}

type mountPoint struct {
	fsType, dir, options string
	flags                uintptr
}

func mountAll(points []mountPoint) error {
	for _, p := range points {
		if err := os.MkdirAll(p.dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(p.fsType, p.dir, p.fsType, p.flags, p.options); err != nil {
			return fmt.Errorf("mount %s on %s: %w", p.fsType, p.dir, err)
		}
	}
	return nil
}

// loadModule loads one module whose dependencies are already loaded.
func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load a kernel module: %w", err)
	}
	defer f.Close()
	switch err := unix.FinitModule(int(f.Fd()), "", 0); {
	case errors.Is(err, unix.ENODEV): // for example, a cipher driver for another processor
		fmt.Println("agent: no hardware for kernel module", path)
	case err != nil && !errors.Is(err, unix.EEXIST):
		return fmt.Errorf("load kernel module %s: %w", path, err)
	}
	return nil
}

// setUpNetwork brings up the loopback and the interface to the host. Both ends
// share one link, so no route is needed.
func setUpNetwork(config wire.Config) error {
	address, err := netip.ParsePrefix(config.Address)
	if err != nil {
		return fmt.Errorf("parse the guest's address: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("set up the network: %w", err)
	}
	defer unix.Close(socket)
	if err := bringUp(socket, "lo"); err != nil {
		return err
	}
	name, err := waitForInterface(config.MAC, 20*time.Second)
	if err != nil {
		return err
	}
	ip := address.Addr().As4()
	if err := setAddress(socket, name, unix.SIOCSIFADDR, ip[:]); err != nil {
		return err
	}
	if err := setAddress(socket, name, unix.SIOCSIFNETMASK, net.CIDRMask(address.Bits(), 32)); err != nil {
		return err
	}
	return bringUp(socket, name)
}

// waitForInterface finds an interface by hardware address. A driver can create
// it some time after its module was loaded.
func waitForInterface(mac string, bound time.Duration) (string, error) {
	deadline := time.After(bound)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		all, err := net.Interfaces()
		if err != nil {
			return "", fmt.Errorf("list network interfaces: %w", err)
		}
		for _, i := range all {
			if i.HardwareAddr.String() == mac {
				return i.Name, nil
			}
		}
		select {
		case <-tick.C:
		case <-deadline:
			return "", fmt.Errorf("no network interface has the hardware address %s after %v", mac, bound)
		}
	}
}

func setAddress(socket int, name string, request uint, address []byte) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := ifr.SetInet4Addr(address); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, request, ifr); err != nil {
		return fmt.Errorf("set address or mask of %s to %v: %w", name, net.IP(address), err)
	}
	return nil
}

func bringUp(socket int, name string) error {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, ifr); err != nil {
		return fmt.Errorf("read flags of %s: %w", name, err)
	}
	ifr.SetUint16(ifr.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("bring %s up: %w", name, err)
	}
	return nil
}
