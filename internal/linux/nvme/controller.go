package nvme

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Controller is one connection of this host to a subsystem.
type Controller struct {
	Name            string // nvme3
	Transport       string
	Address         netip.AddrPort // invalid for PCIe
	NQN             string         // of the subsystem
	HostNQN, HostID string
	State           string // live, connecting, resetting, deleting, ...
	// Authenticated: the kernel has a DH-HMAC-CHAP key of the host. TLS: the
	// connection is encrypted.
	Authenticated, TLS bool
}

// StateLive is the state of a controller that executes commands.
const StateLive = "live"

// Controllers lists the controllers of this machine, also those of PCIe. It
// reads sysfs alone, which never blocks.
func (k *Kernel) Controllers() ([]Controller, error) {
	dir, err := sysfs.Open(k.class())
	if sysfs.IsAbsent(err) {
		return nil, nil // no module, no controllers
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Names()
	if err != nil {
		return nil, err
	}
	var all []Controller
	for _, name := range names {
		c, err := readController(dir, name)
		if sysfs.IsAbsent(err) {
			continue // being removed
		}
		if err != nil {
			return nil, fmt.Errorf("read NVMe controller %s: %w", name, err)
		}
		all = append(all, c)
	}
	return all, nil
}

func readController(class sysfs.Dir, name string) (Controller, error) {
	dir, err := class.Open(name)
	if err != nil {
		return Controller{}, err
	}
	defer dir.Close()
	c := Controller{Name: name}
	address := ""
	for _, a := range []struct {
		name string
		to   *string
	}{{"transport", &c.Transport}, {"subsysnqn", &c.NQN}, {"state", &c.State}, {"address", &address}} {
		if *a.to, err = dir.Text(a.name); err != nil {
			return Controller{}, err
		}
	}
	var secret, key string
	err = optional(dir, map[string]*string{ // controllers of PCIe do not have these
		"hostnqn": &c.HostNQN, "hostid": &c.HostID, "dhchap_secret": &secret, "tls_key": &key,
	})
	c.Authenticated = secret != "" && secret != "none"
	c.TLS = key != "" && key != "(null)"
	c.Address = parseAddress(address)
	return c, err
}

// optional reads attributes that some devices do not have, and leaves those empty.
func optional(dir sysfs.Dir, attributes map[string]*string) error {
	for name, to := range attributes {
		text, err := dir.Text(name)
		if err != nil && !sysfs.IsAbsent(err) {
			return err
		}
		*to = text
	}
	return nil
}

// parseAddress parses "traddr=192.0.2.1,trsvcid=4420,src_addr=192.0.2.7".
func parseAddress(text string) netip.AddrPort {
	values := map[string]string{}
	for word := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(word, "=")
		values[key] = value
	}
	a, err := netip.ParseAddr(strings.Trim(values["traddr"], "[]"))
	port, portErr := strconv.ParseUint(values["trsvcid"], 10, 16)
	if err != nil || portErr != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(port))
}

// is reports whether two controllers are the same connection: a name is used
// again after its controller was removed.
func (c Controller) is(o Controller) bool {
	return c.Name == o.Name && c.NQN == o.NQN && c.HostNQN == o.HostNQN && c.Address == o.Address
}

// find returns the controller as it is now.
func (k *Kernel) find(c Controller) (Controller, bool, error) {
	all, err := k.Controllers()
	for _, now := range all {
		if now.is(c) {
			return now, true, nil
		}
	}
	return Controller{}, false, err
}

// Delete disconnects a controller and waits until it is gone. The kernel drops
// data that it has not written: flush first. It blocks for up to two minutes
// while the target does not answer. A missing controller is no error.
func (k *Kernel) Delete(ctx context.Context, c Controller) error {
	if _, found, err := k.find(c); err != nil || !found {
		return err
	}
	if err := kernelcall.Write(ctx, k.class(c.Name, "delete_controller"), "1", kernelcall.Key{}); err != nil && !sysfs.IsAbsent(err) {
		return fmt.Errorf("disconnect %s from %s: %w", c.Name, c.NQN, err)
	}
	return retry.For(ctx, removalBound, func() (again bool, err error) {
		_, found, err := k.find(c)
		if err == nil && found {
			err = errs.Errorf(errs.Unavailable, "%s, a controller of %s, still exists %v after its removal", c.Name, c.NQN, removalBound)
		}
		return found, err
	})
}

// removalBound is for a deletion by another program.
const removalBound = 10 * time.Second

// Rescan makes the kernel read the list and the sizes of namespaces.
func (k *Kernel) Rescan(c Controller) error {
	err := sysfs.Write(k.class(c.Name, "rescan_controller"), "1")
	if err != nil && !sysfs.IsAbsent(err) {
		return fmt.Errorf("rescan %s: %w", c.Name, err)
	}
	return nil
}

// IsMultipath reports whether the kernel joins the controllers of a subsystem
// to one block device per namespace.
func (k *Kernel) IsMultipath() (bool, error) {
	dir, err := sysfs.Open(filepath.Join(k.Sys, "module/nvme_core/parameters"))
	if sysfs.IsAbsent(err) {
		return false, nil // no module, or one without the parameter
	}
	if err != nil {
		return false, err
	}
	defer dir.Close()
	text := ""
	err = optional(dir, map[string]*string{"multipath": &text})
	return text == "Y", err
}
