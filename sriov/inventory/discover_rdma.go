package inventory

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
	var found []string
	at := map[string]devicePath{}
	on := map[devicePath][]string{}
	s.each(infiniband, 2, func(class sysfs.Dir, name string, where devicePath) {
		if where.address == "" {
			return // one in software
		}
		found = append(found, name)
		at[name], on[where] = where, append(on[where], name)
		if where.isFunction() && r.pkeys[where.address] == "" {
			r.pkeys[where.address] = s.pkey(class, name)
		}
	})
	nodes := s.charDevices(on)
	for _, name := range found {
		where, device := at[name], RDMA{Name: name, Devices: nodes[name]}
		if where.isFunction() {
			r.functions[where.address] = append(r.functions[where.address], device)
		} else {
			r.auxiliary[where.below] = append(r.auxiliary[where.below], device)
		}
	}
	return r
}

// charDevices is the device nodes of each RDMA device, and for all of them the
// connection manager where there is one. A node hangs where its RDMA device
// does; only where several do, it is asked which one it is of.
func (s *scan) charDevices(on map[devicePath][]string) map[string][]CharDevice {
	of := map[string][]CharDevice{}
	for _, dir := range []string{"class/infiniband_mad", "class/infiniband_verbs"} {
		s.each(dir, 2, func(class sysfs.Dir, name string, where devicePath) {
			role := strings.TrimRight(name, "0123456789")
			if role != "uverbs" && role != "umad" && role != "issm" {
				return
			}
			var device string
			switch there := on[where]; len(there) {
			case 0: // in another namespace
				return
			case 1:
				device = there[0]
			default:
				var err error
				if device, err = class.Text(name + "/ibdev"); err != nil {
					if !sysfs.IsAbsent(err) {
						s.problem(dir+"/"+name, err)
					}
					return
				}
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
	for _, f := range functions.ordered {
		f.RDMA = r.functions[f.Address]
		f.RDMACapable = len(f.RDMA) > 0
		f.PKey = r.pkeys[f.Address]
	}
}
