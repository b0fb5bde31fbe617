package inventory

import (
	"context"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// userspace reads the UIO and vDPA devices of functions. The vDPA device of a
// scalable function does not belong to its parent function.
func (s *scan) userspace(context.Context) {
	s.eachDevice("class/uio", 2, func(_ sysfs.Dir, name string, at devicePath) {
		if f := s.functions[at.address]; f != nil && at.isFunction() && f.UIO == "" {
			f.UIO = name
		}
	})
	const bus = "bus/vdpa/devices"
	s.eachDevice(bus, 1, func(devices sysfs.Dir, name string, at devicePath) {
		f := s.functions[at.address]
		if f == nil || !at.isFunction() || f.VDPA != nil {
			return
		}
		v, err := readVDPA(devices, name)
		if err == nil {
			f.VDPA = v
		}
		s.problem(bus+"/"+name, absentIsNone(err))
	})
}

func readVDPA(devices sysfs.Dir, name string) (*VDPA, error) {
	dir, err := devices.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	v := &VDPA{Name: name}
	if v.Driver, err = linkBase(dir, "driver"); err != nil || v.Driver != "vhost_vdpa" {
		return v, err
	}
	entries, err := dir.Names()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry, "vhost-vdpa-") {
			v.Path = "/dev/" + entry
		}
	}
	return v, nil
}
