package conformance;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * What Vela does not serve yet. The scenario must fail against Vela, so the day it works the mark has to go; against
 * another broker it is an ordinary one.
 */
@Retention(RetentionPolicy.RUNTIME)
@Target(ElementType.METHOD)
@interface Later {
    /** The feature that is missing. */
    String value();
}
