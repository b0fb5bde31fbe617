package sysfstest

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

type vdpaDevice struct{ address, driver string }

func (t *Tree) addVDPA(name, address string) error {
	if _, there := t.vdpa[name]; there {
		return unix.EEXIST
	}
	place := Device(address) + "/" + name
	if err := os.MkdirAll(t.path(place), 0o755); err != nil {
		return err
	}
	t.vdpa[name] = &vdpaDevice{address: address}
	if err := t.link("bus/vdpa/devices/"+name, place); err != nil {
		return err
	}
	for _, driver := range []string{"virtio_vdpa", "vhost_vdpa"} {
		if _, err := os.Stat(t.path("bus/vdpa/drivers/" + driver)); err == nil {
			return t.bindVDPA(name, driver)
		}
	}
	return nil
}

func (t *Tree) removeVDPA(name string) error {
	if t.vdpa[name] == nil {
		return unix.ENODEV
	}
	place := Device(t.vdpa[name].address) + "/" + name
	delete(t.vdpa, name)
	if err := os.Remove(t.path("bus/vdpa/devices/" + name)); err != nil {
		return err
	}
	return os.RemoveAll(t.path(place))
}

func (t *Tree) bindVDPA(name, driver string) error {
	v := t.vdpa[name]
	place := Device(v.address) + "/" + name
	v.driver = driver
	if driver == "vhost_vdpa" {
		if err := os.MkdirAll(t.path(fmt.Sprintf("%s/vhost-vdpa-%d", place, t.nextNumber("vdpa"))), 0o755); err != nil {
			return err
		}
	}
	return t.link(place+"/driver", "bus/vdpa/drivers/"+driver)
}

func (t *Tree) unbindVDPA(name string) error {
	v := t.vdpa[name]
	place := t.path(Device(v.address) + "/" + name)
	v.driver = ""
	entries, err := os.ReadDir(place)
	if err != nil {
		return err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool {
		return e.Name() != "driver" && !strings.HasPrefix(e.Name(), "vhost-vdpa-")
	})
	for _, e := range entries {
		if err := os.RemoveAll(path.Join(place, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tree) writeVDPA(name, value string) error {
	driver, attribute := path.Base(path.Dir(name)), path.Base(name)
	if _, err := os.Stat(t.path("bus/vdpa/drivers/" + driver)); err != nil {
		return unix.ENOENT
	}
	v := t.vdpa[value]
	switch {
	case v == nil:
		return unix.ENODEV
	case attribute == "bind" && v.driver != "":
		return unix.EBUSY
	case attribute == "bind":
		return t.bindVDPA(value, driver)
	case attribute == "unbind" && v.driver == driver:
		return t.unbindVDPA(value)
	case attribute == "unbind":
		return unix.ENODEV
	}
	return unix.EACCES
}
