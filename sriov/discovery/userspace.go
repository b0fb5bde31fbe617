package discovery

import (
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// tellUIO puts the user-space I/O devices into their functions.
func (s *scan) tellUIO(functions devices) {
	s.each("class/uio", 2, func(_ sysfs.Dir, name string, at place) {
		if f := functions[at.address]; f != nil && at.isFunction() && f.UIO == "" {
			f.UIO = name
		}
	})
}

// tellVDPA puts the vDPA devices into their functions. That of a scalable
// function is not one of the function above.
func (s *scan) tellVDPA(functions devices) {
	const bus = "bus/vdpa/devices"
	s.each(bus, 1, func(devices sysfs.Dir, name string, at place) {
		f := functions[at.address]
		if f == nil || !at.isFunction() || f.VDPA != nil {
			return
		}
		v, err := readVDPA(devices, name)
		if err != nil {
			if !sysfs.IsAbsent(err) {
				s.problem(bus+"/"+name, err)
			}
			return
		}
		f.VDPA = v
	})
}

func readVDPA(devices sysfs.Dir, name string) (*VDPA, error) {
	dir, err := devices.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	v := &VDPA{Name: name}
	if v.Driver, err = linked(dir, "driver"); err != nil || v.Driver != "vhost_vdpa" {
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
