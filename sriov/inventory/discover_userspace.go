package inventory

import (
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// userspace is what functions have for drivers that are no part of the kernel,
// by address.
type userspace struct {
	uio  map[string]string
	vdpa map[string]*VDPA
}

// userspace reads them. The vDPA device of a scalable function is not one of
// the function above.
func (s *scan) userspace() *userspace {
	u := &userspace{uio: map[string]string{}, vdpa: map[string]*VDPA{}}
	s.each("class/uio", 2, func(_ sysfs.Dir, name string, at devicePath) {
		if at.isFunction() && u.uio[at.address] == "" {
			u.uio[at.address] = name
		}
	})
	const bus = "bus/vdpa/devices"
	s.each(bus, 1, func(devices sysfs.Dir, name string, at devicePath) {
		if !at.isFunction() || u.vdpa[at.address] != nil {
			return
		}
		v, err := readVDPA(devices, name)
		if err != nil {
			if !sysfs.IsAbsent(err) {
				s.problem(bus+"/"+name, err)
			}
			return
		}
		u.vdpa[at.address] = v
	})
	return u
}

func (u *userspace) tell(functions devices) {
	for _, f := range functions.ordered {
		f.UIO, f.VDPA = u.uio[f.Address], u.vdpa[f.Address]
	}
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
