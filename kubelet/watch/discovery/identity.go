package discovery

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// identity distinguishes sockets with the same path. Inode numbers are reused,
// so it has the birth time if supported, but no time that chmod changes.
type identity struct {
	file, target inode // target of a symbolic link
}

type inode struct {
	major, minor uint32
	ino          uint64
	born         unix.StatxTimestamp
}

var errNoSocket = errors.New("neither a socket nor a symbolic link to one")

// identify returns errNoSocket for other files than sockets and links to them. If
// the target of a link cannot be read, the identity has only the link.
func identify(path string) (identity, error) {
	var id identity
	kind, err := id.file.stat(path, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && kind == unix.S_IFLNK {
		kind, err = id.target.stat(path, 0)
	}
	switch {
	case err != nil:
		return id, err
	case kind != unix.S_IFSOCK:
		return identity{}, errNoSocket
	}
	return id, nil
}

func (i *inode) stat(path string, flags int) (kind uint16, err error) {
	var st unix.Statx_t
	for {
		err = unix.Statx(unix.AT_FDCWD, path, flags, unix.STATX_TYPE|unix.STATX_INO|unix.STATX_BTIME, &st)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("statx %s: %w", path, err)
	}
	*i = inode{major: st.Dev_major, minor: st.Dev_minor, ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		i.born = st.Btime
	}
	return st.Mode & unix.S_IFMT, nil
}
