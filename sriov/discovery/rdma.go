package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// rdma is the RDMA devices of this namespace, by what they hang on.
type rdma struct {
	functions map[string][]RDMA // by address
	auxiliary map[string][]RDMA // by name
	pkeys     map[string]string // by address of a function
}

const infiniband = "class/infiniband"

func (s *scan) rdma() *rdma {
	r := &rdma{functions: map[string][]RDMA{}, auxiliary: map[string][]RDMA{}, pkeys: map[string]string{}}
	devices := s.charDevices()
	s.each(infiniband, 2, func(class sysfs.Dir, name string, at place) {
		device := RDMA{Name: name, Devices: devices[name]}
		switch {
		case at.isFunction():
			r.functions[at.address] = append(r.functions[at.address], device)
			if r.pkeys[at.address] == "" {
				r.pkeys[at.address] = s.pkey(class, name)
			}
		case at.address != "":
			r.auxiliary[at.below] = append(r.auxiliary[at.below], device)
		}
	})
	return r
}

// charDevices is the device nodes of each RDMA device, and for all of them the
// connection manager where there is one.
func (s *scan) charDevices() map[string][]CharDevice {
	of := map[string][]CharDevice{}
	for _, dir := range []string{"class/infiniband_mad", "class/infiniband_verbs"} {
		s.each(dir, 2, func(class sysfs.Dir, name string, _ place) {
			role := strings.TrimRight(name, "0123456789")
			if role != "uverbs" && role != "umad" && role != "issm" {
				return
			}
			device, err := class.Text(name + "/ibdev")
			if err != nil {
				if !sysfs.IsAbsent(err) {
					s.problem(dir+"/"+name, err)
				}
				return
			}
			of[device] = append(of[device], CharDevice{role, "/dev/infiniband/" + name})
		})
	}
	if _, err := os.Lstat(filepath.Join(s.config.Dev, "infiniband/rdma_cm")); err == nil {
		for device := range of {
			of[device] = append(of[device], CharDevice{"rdma_cm", "/dev/infiniband/rdma_cm"})
		}
	}
	return of
}

// pkey is the partition key at index 0 of the device's first port.
func (s *scan) pkey(class sysfs.Dir, name string) string {
	key, err := class.Text(name + "/ports/1/pkeys/0")
	if err != nil {
		if !sysfs.IsAbsent(err) {
			s.problem(infiniband+"/"+name, err)
		}
		return ""
	}
	if _, err := strconv.ParseUint(strings.TrimPrefix(key, "0x"), 16, 16); err != nil {
		s.problem(infiniband+"/"+name, fmt.Errorf("pkeys/0 of its port 1 is %.40q: a number such as 0x8001 is right", key))
		return ""
	}
	return key
}

func (r *rdma) tell(functions devices) {
	for address, f := range functions {
		f.RDMA = r.functions[address]
		f.RDMACapable = len(f.RDMA) > 0
		f.PKey = r.pkeys[address]
	}
}
