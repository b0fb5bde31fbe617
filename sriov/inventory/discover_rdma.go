package inventory

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

const infiniband = "class/infiniband"

func (s *scan) rdma(context.Context) {
	var found []string
	at := map[string]devicePath{}
	on := map[devicePath][]string{}
	s.eachDevice(infiniband, 2, func(class sysfs.Dir, name string, where devicePath) {
		if where.address == "" {
			return // a software RDMA device
		}
		found = append(found, name)
		at[name], on[where] = where, append(on[where], name)
		if f := s.functions[where.address]; f != nil && where.isFunction() && f.PKey == "" {
			f.PKey = s.pkey(class, where.address, name)
		}
	})
	nodes := s.charDevices(on)
	for _, name := range found {
		where, device := at[name], RDMA{Name: name, Devices: nodes[name]}
		f, a := s.functions[where.address], s.auxiliary[where.below]
		switch {
		case !where.isFunction() && a != nil:
			a.RDMA = append(a.RDMA, device)
		case where.isFunction() && f != nil:
			f.RDMA = append(f.RDMA, device)
		}
	}
}

// charDevices returns device nodes by RDMA device, with the connection
// manager's. If RDMA devices share a path, the node's ibdev attribute
// identifies its device.
func (s *scan) charDevices(on map[devicePath][]string) map[string][]CharDevice {
	of := map[string][]CharDevice{}
	for _, dir := range []string{"class/infiniband_mad", "class/infiniband_verbs"} {
		s.eachDevice(dir, 2, func(class sysfs.Dir, name string, where devicePath) {
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
					s.problemOf(where.address, dir+"/"+name, ignoreAbsent(err))
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

func (s *scan) pkey(class sysfs.Dir, function, name string) string {
	key, err := class.Text(name + "/ports/1/pkeys/0")
	if err != nil {
		s.problemOf(function, infiniband+"/"+name, ignoreAbsent(err))
		return ""
	}
	if _, err := strconv.ParseUint(strings.TrimPrefix(key, "0x"), 16, 16); err != nil {
		s.problemOf(function, infiniband+"/"+name, fmt.Errorf("pkeys/0 of its port 1 is %.40q: want a number such as 0x8001", key))
		return ""
	}
	return key
}
