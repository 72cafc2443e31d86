// Package disk changes files that other processes read or change at the same time. No process
// sees a file half written.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lock locks a folder until unlock is called. Another process that locks the same folder
// waits until then. It leaves no file behind.
func Lock(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks
}

// Version identifies a version of a file. It differs after the file was written or replaced. The
// zero Version is that of a missing file.
type Version struct {
	Size     int64 // in bytes
	modified int64 // when it was written last, in nanoseconds since 1970
	changed  int64 // when anything about it was changed last, its name included
	device   uint64
	inode    uint64
}

// VersionOf returns the present version of a file. A missing file is not an error.
func VersionOf(path string) (Version, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Version{}, nil
	case err != nil:
		return Version{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return Version{
		Size: st.Size, modified: st.Mtim.Nano(), changed: st.Ctim.Nano(),
		device: uint64(st.Dev), inode: st.Ino, // whose types depend on the system
	}, nil
}

// Replace replaces a file atomically: a reader sees the old file or the new one, whole, and so
// does a process that starts after a crash. The new file has the mode of the old one, and its
// owner if this process may change owners. If there was no file, only the owner may read the new
// one. After an error the old file is unchanged and no other file is left.
func Replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if had, err := os.Stat(path); err == nil {
		if owner, ok := had.Sys().(*syscall.Stat_t); ok {
			_ = f.Chown(int(owner.Uid), int(owner.Gid)) // only root may
		}
		if err := f.Chmod(had.Mode().Perm()); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	// A Watch sees that the file was moved after it was written, also within a tick of the kernel's clock.
	if err := os.Chtimes(f.Name(), time.Time{}, time.Now().Add(-tick)); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// tick is longer than the resolution of file systems' times.
const tick = 10 * time.Millisecond
